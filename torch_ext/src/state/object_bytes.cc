// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/state/object_bytes.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/serialize.h>

#include <exception>
#include <optional>
#include <regex>
#include <string_view>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde::detail {
namespace {

const c10::Device kCpu(c10::kCPU);

c10::Device place_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.device() : kCpu;
}

// LibTorch saves all of a tensor's storage, of which a view may be a small part.
at::Tensor compact(const at::Tensor& tensor) {
  const bool is_view =
      tensor.has_storage() && !tensor.is_sparse() && tensor.storage().nbytes() > tensor.nbytes();
  return is_view ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor;
}

/// Backs up a module's tensors before a load, which replaces their memory and checks no shape; a
/// class's own load() may write into their memory instead.
class ModuleBackup {
 public:
  explicit ModuleBackup(torch::nn::Module& module) : tensors_(tensors_in(module)) {
    for (const auto& [name, tensor] : tensors_) {
      // Shares the memory, but not the version, so that restoring does not count as a change.
      former_.push_back(tensor.variable_data());
      values_.push_back(without_repeats(former_.back()).clone());
    }
  }

  c10::Device device() const { return former_.empty() ? kCpu : former_.front().device(); }

  void restore() const {
    for (std::size_t i = 0; i < former_.size(); ++i) {
      write_values(former_[i], values_[i]);
      tensors_[i].second.set_data(former_[i]);
    }
  }

  // Returns a text about a tensor whose shape or dtype changed; empty if none. Moves all back to
  // their devices.
  std::string misfit() const {
    for (std::size_t i = 0; i < former_.size(); ++i) {
      const auto& [name, tensor] = tensors_[i];
      if (tensor.sizes() != former_[i].sizes() ||
          tensor.scalar_type() != former_[i].scalar_type()) {
        return name + " is " + describe(former_[i]) + " here and " + describe(tensor) +
               " in what was saved. Construct the module as it was when it was saved";
      }
      if (tensor.device() != former_[i].device()) {
        tensor.set_data(tensor.detach().to(former_[i].device()));
      }
    }
    return {};
  }

 private:
  NamedTensors tensors_;
  std::vector<at::Tensor> former_;  // their memory
  std::vector<at::Tensor> values_;
};

std::function<void(bool)> load_module(torch::nn::Module& module, const std::string& bytes) {
  const auto backup = std::make_shared<const ModuleBackup>(module);
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size(), backup->device());
    module.load(archive);
    const std::string misfit = backup->misfit();
    if (!misfit.empty()) throw UsageError(misfit);
  } catch (...) {
    backup->restore();
    throw;
  }
  return [backup](bool keep) {
    if (!keep) backup->restore();
  };
}

// save_object() writes this, the fingerprint of the rest, the object's type, and its bytes.
constexpr std::string_view kMagic = "ronde::save_bytes 1\n";
constexpr std::size_t kDigits = 16;

std::string with_header(const std::string& type, const std::string& bytes) {
  const std::string rest = type + '\n' + bytes;
  return std::string(kMagic) + store::checksum_text(fingerprint(rest)) + rest;
}

void remove_header(std::string& bytes, const std::string& type) {
  const std::string_view all = bytes;
  const std::size_t header = kMagic.size() + kDigits;
  if (!all.starts_with(kMagic) || all.size() < header) {
    throw UsageError("the " + std::to_string(bytes.size()) +
                     " bytes were not written by ronde::save_bytes, or their beginning is lost");
  }
  const std::string_view rest = all.substr(header);
  if (all.substr(kMagic.size(), kDigits) != store::checksum_text(fingerprint(rest))) {
    throw UsageError("the " + std::to_string(bytes.size()) +
                     " bytes are not those that ronde::save_bytes wrote: some are lost or changed");
  }
  const std::string_view saved = rest.substr(0, rest.find('\n'));
  if (saved != type) {
    throw UsageError("the bytes are those of \"" + std::string(saved) + "\", the object is \"" +
                     type + "\". Load them into an object of the type that was saved");
  }
  bytes.erase(0, header + type.size() + 1);
}

// The caller adds the rank. The result is not empty, which would mean success.
std::string without_rank(std::string text) {
  static const std::regex in_world("^rank \\d+ of world '[^']+': ");
  const std::string prefix = rank_prefix();
  if (!prefix.empty() && text.starts_with(prefix)) text.erase(0, prefix.size());
  text = std::regex_replace(text, in_world, "");
  return !text.empty() ? text : "unknown error";
}

}  // namespace

NamedTensors tensors_in(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    all.emplace_back("parameter " + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    all.emplace_back("buffer " + item.key(), item.value());
  }
  return all;
}

NamedTensors tensors_in(const torch::jit::Module& module) {
  NamedTensors all;
  for (const auto& [name, value] : module.named_parameters()) {
    all.emplace_back("parameter " + name, value);
  }
  for (const auto& [name, value] : module.named_buffers())
    all.emplace_back("buffer " + name, value);
  return all;
}

std::string problem_of(const std::function<void()>& function) {
  try {
    function();
    return {};
  } catch (const GroupError&) {
    throw;
  } catch (const c10::Error& error) {
    return without_rank(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return without_rank(error.what());
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

std::string root_problem(int root_rank, ProcessSet set) {
  const int size = static_cast<int>(ranks_of(set).size());
  if (root_rank >= 0 && root_rank < size) return {};
  return "root_rank is " + std::to_string(root_rank) + ", but there are only the ranks 0 to " +
         std::to_string(size - 1) +
         (set.id == kGlobalSet.id ? "" : " in process set " + std::to_string(set.id));
}

std::string type_text(const std::type_info& type) {
  return c10::demangle(type.name());
}

std::function<void(bool)> load_or_undo(const std::function<std::string()>& save,
                                       const std::function<void(const std::string&)>& load,
                                       const std::string& bytes) {
  std::optional<std::string> before;
  try {
    before = save();
  } catch (const std::exception&) {
    // An object that cannot be saved cannot be restored.
  }
  const auto undo = [load, before] {
    if (before) load(*before);
  };
  try {
    load(bytes);
  } catch (...) {
    const std::string second = problem_of(undo);  // load() may have changed a part
    if (second.empty()) throw;
    throw UsageError(problem_of([] { throw; }) + ". It cannot be set back: " + second);
  }
  return [undo](bool keep) {
    if (!keep) undo();
  };
}

std::string bytes_of_archive(const std::function<void(torch::serialize::OutputArchive&)>& write) {
  torch::serialize::OutputArchive archive;
  write(archive);
  std::string bytes;
  archive.save_to([&bytes](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  return bytes;
}

void read_archive(const std::string& bytes,
                  const std::function<void(torch::serialize::InputArchive&)>& read) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), kCpu);
  read(archive);
}

// LibTorch does not save undefined tensors: they are encoded as no bytes.
std::string bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return bytes_of_archive([&](auto& archive) { archive.write("0", compact(tensor)); });
}

at::Tensor tensor_from(const std::string& bytes, const at::Tensor& former) {
  at::Tensor tensor;
  if (bytes.empty()) return tensor;
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), place_of(former));
  archive.read("0", tensor);
  return tensor;
}

std::string bytes_of(const std::vector<at::Tensor>& tensors) {
  return bytes_of_archive([&](torch::serialize::OutputArchive& archive) {
    c10::List<bool> defined;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      defined.push_back(tensors[i].defined());
      if (tensors[i].defined()) archive.write(std::to_string(i), compact(tensors[i]));
    }
    archive.write("defined", c10::IValue(defined));
  });
}

std::vector<at::Tensor> tensors_from(const std::string& bytes,
                                     const std::vector<at::Tensor>& former) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), former.empty() ? kCpu : place_of(former.front()));
  c10::IValue list;
  archive.read("defined", list);
  const c10::List<bool> defined = list.toBoolList();
  std::vector<at::Tensor> tensors(defined.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (defined.get(i)) archive.read(std::to_string(i), tensors[i]);
  }
  return tensors;
}

// Moves tensors to the CPU first: the pickle records devices, which other ranks may lack.
std::string bytes_of_ivalue(const c10::IValue& value) {
  bool elsewhere = false;
  value.visit([&elsewhere](const c10::IValue& part) {
    elsewhere =
        elsewhere || (part.isTensor() && part.toTensor().defined() && !part.toTensor().is_cpu());
    return elsewhere;
  });
  const std::vector<char> bytes = torch::pickle_save(elsewhere ? value.deepcopy(kCpu) : value);
  return {bytes.data(), bytes.size()};
}

c10::IValue ivalue_from(const std::string& bytes) {
  return torch::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
}

ObjectCodec codec_of(torch::nn::Module* module) {
  ObjectCodec codec;
  if (module == nullptr) {
    codec.problem = "the module holder is empty: construct the module first";
    return codec;
  }
  codec.lines.push_back(type_text(typeid(*module)));
  for (const auto& [name, tensor] : tensors_in(*module)) {
    codec.lines.push_back(name + ": " + describe(tensor));
  }
  codec.encode = [module] {
    return bytes_of_archive([module](auto& archive) { module->save(archive); });
  };
  codec.decode = [module](const std::string& bytes) { return load_module(*module, bytes); };
  return codec;
}

std::string save_object(const ObjectCodec& codec) {
  std::string bytes;
  std::string problem = codec.problem;
  if (problem.empty()) {
    problem = problem_of([&] { bytes = with_header(codec.lines.front(), codec.encode()); });
  }
  if (!problem.empty()) throw UsageError(rank_prefix() + "ronde::save_bytes: " + problem);
  return bytes;
}

void load_object(const ObjectCodec& codec, std::string bytes) {
  std::string problem = codec.problem;
  if (problem.empty()) {
    problem = problem_of([&] {
      remove_header(bytes, codec.lines.front());
      codec.decode(std::move(bytes))(true);
    });
  }
  if (!problem.empty()) throw UsageError(rank_prefix() + "ronde::load_bytes: " + problem);
}

}  // namespace ronde::detail
