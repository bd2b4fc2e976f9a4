// SPDX-License-Identifier: Apache-2.0
// Encodes an optimizer through LibTorch's save and load, and fills their gaps.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <functional>
#include <map>
#include <memory>
#include <typeinfo>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/broadcast.h"
#include "ronde/torch/checkpoint_object.h"
#include "ronde/torch/jorge.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace detail {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// LibTorch fails to save an LBFGS that is past its second iteration: `al` has undefined elements
// then. It is scratch memory that every iteration fills before it reads it, and makes anew if
// absent.
void drop_scratch(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  for (const auto& item : optimizer.state()) {
    static_cast<torch::optim::LBFGSParamState&>(*item.second).al(std::nullopt);
  }
}

using NamedState = std::vector<std::pair<const char*, at::Tensor>>;

}  // namespace

StateSlots shaped_slots(OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) {
    return {{"momentum_buffer", &sgd->momentum_buffer()}};
  }
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) {
    return {{"exp_avg", &adam->exp_avg()},
            {"exp_avg_sq", &adam->exp_avg_sq()},
            {"max_exp_avg_sq", &adam->max_exp_avg_sq()}};
  }
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) {
    return {{"exp_avg", &adamw->exp_avg()},
            {"exp_avg_sq", &adamw->exp_avg_sq()},
            {"max_exp_avg_sq", &adamw->max_exp_avg_sq()}};
  }
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) {
    return {{"square_avg", &rmsprop->square_avg()},
            {"momentum_buffer", &rmsprop->momentum_buffer()},
            {"grad_avg", &rmsprop->grad_avg()}};
  }
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) {
    return {{"sum", &adagrad->sum()}};
  }
  if (auto* jorge = dynamic_cast<JorgeParamState*>(&state)) {
    return {{"momentum_buffer", &jorge->momentum_buffer()},
            {"preconditioned_buffer", &jorge->preconditioned_buffer()}};
  }
  return {};
}

namespace {

NamedState shaped_state(OptimizerParamState& state) {
  NamedState all;
  for (const auto& [name, tensor] : shaped_slots(state)) all.emplace_back(name, *tensor);
  return all;
}

// Returns the tensors of an LBFGS, which have the elements of all parameters together.
NamedState flat_state(const OptimizerParamState& state) {
  const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSParamState*>(&state);
  if (lbfgs == nullptr) return {};
  NamedState all = {{"d", lbfgs->d()}, {"prev_flat_grad", lbfgs->prev_flat_grad()}};
  for (const at::Tensor& tensor : lbfgs->old_dirs()) all.emplace_back("old_dirs", tensor);
  for (const at::Tensor& tensor : lbfgs->old_stps()) all.emplace_back("old_stps", tensor);
  return all;
}

// The shape and type that a tensor of the state shares with its parameter.
struct Form {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype;
};

// Returns the form of all parameters' gradients in one row, as in LBFGS.
Form flat_form(const std::vector<at::Tensor>& parameters) {
  Form form{{0}, parameters.front().scalar_type()};
  for (const at::Tensor& parameter : parameters) {
    form.sizes.front() += parameter.numel();
    form.dtype = c10::promoteTypes(form.dtype, parameter.scalar_type());
  }
  return form;
}

// A module's dtype may change between steps while the state keeps its own: types are compared only
// if the parameters had other types when the state was saved.
enum class Compare { Shapes, ShapesAndTypes };

void check_form(const std::string& what, const NamedState& state, const Form& form,
                Compare compare) {
  for (const auto& [name, tensor] : state) {
    if (!tensor.defined()) continue;
    const bool same_type = compare == Compare::Shapes || tensor.scalar_type() == form.dtype;
    if (tensor.sizes() == form.sizes && same_type) continue;
    throw UsageError("the optimizer's state does not fit: of " + what + ", it has a " + name +
                     " of " + describe(tensor) + ". Load the state that was saved with this model");
  }
}

// Throws unless the state fits these parameters: LibTorch loads a checkpoint of another model with
// as many parameters without an error.
void check_fit(const Optimizer& optimizer, Compare compare) {
  for (std::size_t number = 0; number < optimizer.param_groups().size(); ++number) {
    const auto& parameters = optimizer.param_groups()[number].params();
    const std::string group = "group " + std::to_string(number);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      check_form(
          group + " parameter " + std::to_string(i) + ", which is " + describe(parameters[i]),
          shaped_state(*found->second), {parameters[i].sizes().vec(), parameters[i].scalar_type()},
          compare);
      const NamedState flat = flat_state(*found->second);
      if (flat.empty()) continue;
      const Form form = flat_form(parameters);
      check_form(group + ", which is " + std::to_string(form.sizes.front()) + " elements of " +
                     describe_type(form.dtype) + " in all",
                 flat, form, compare);
    }
  }
}

constexpr const char* kOptimizerKey = "optimizer";
constexpr const char* kTypesKey = "parameter_types";

std::vector<std::int64_t> types_of_parameters(const Optimizer& optimizer) {
  std::vector<std::int64_t> types;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      types.push_back(static_cast<std::int64_t>(parameter.scalar_type()));
    }
  }
  return types;
}

bool on_one_device(const Optimizer& optimizer, std::optional<c10::Device>& device) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!device) device = parameter.device();
      if (parameter.device() != *device) return false;
    }
  }
  return true;
}

void move_to(OptimizerParamState& state, c10::Device device) {
  const std::string bytes = bytes_of_archive([&](auto& archive) { state.serialize(archive); });
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device);
  state.serialize(archive);
}

// Loads all state onto one device, LibTorch's only way, and from there to each parameter's.
void load_onto_devices(Optimizer& optimizer, const std::string& bytes) {
  std::optional<c10::Device> device;
  const bool together = on_one_device(optimizer, device);
  torch::serialize::InputArchive all;
  all.load_from(bytes.data(), bytes.size(), together && device ? *device : c10::Device(c10::kCPU));
  torch::serialize::InputArchive archive;
  all.read(kOptimizerKey, archive);
  if (archive.keys().empty()) {
    throw UsageError("the optimizer saves nothing: its class must implement save() and load()");
  }
  optimizer.load(archive);
  c10::IValue saved_types;
  all.read(kTypesKey, saved_types);
  check_fit(optimizer, saved_types.toIntList().vec() == types_of_parameters(optimizer)
                           ? Compare::Shapes
                           : Compare::ShapesAndTypes);
  if (together) return;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) move_to(*found->second, parameter.device());
    }
  }
}

// Backs up state and options before a load, and clears the state: LibTorch's load would keep the
// state of parameters that have none in the bytes.
class OptimizerBackup {
 public:
  explicit OptimizerBackup(Optimizer& optimizer) : optimizer_(optimizer) {
    for (const auto& group : optimizer.param_groups()) {
      options_.push_back(group.has_options() ? group.options().clone() : nullptr);
    }
    state_ = std::move(optimizer.state());
    optimizer.state().clear();
  }

  void restore() {
    optimizer_.state() = std::move(state_);
    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]) optimizer_.param_groups()[i].set_options(std::move(options_[i]));
    }
  }

 private:
  Optimizer& optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  ska::flat_hash_map<void*, std::unique_ptr<OptimizerParamState>> state_;
};

std::function<void(bool)> load_optimizer(Optimizer& optimizer, const std::string& bytes) {
  const auto backup = std::make_shared<OptimizerBackup>(optimizer);
  try {
    load_onto_devices(optimizer, bytes);
  } catch (...) {
    backup->restore();
    throw;
  }
  return [backup](bool keep) {
    if (!keep) backup->restore();
  };
}

std::string save_optimizer(const Optimizer& optimizer) {
  drop_scratch(optimizer);
  check_fit(optimizer, Compare::Shapes);
  return bytes_of_archive([&](torch::serialize::OutputArchive& archive) {
    torch::serialize::OutputArchive own;
    optimizer.save(own);
    archive.write(kOptimizerKey, own);
    archive.write(kTypesKey, c10::IValue(types_of_parameters(optimizer)));
  });
}

// Calls `visit` with "<group>.<parameter>.<tensor>", the tensor of the state, and its parameter.
void visit_slots(
    Optimizer& optimizer,
    const std::function<void(const std::string&, at::Tensor&, const at::Tensor&)>& visit) {
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const std::string prefix = std::to_string(group) + "." + std::to_string(i) + ".";
      for (const auto& [name, tensor] : shaped_slots(*found->second)) {
        visit(prefix + name, *tensor, parameters[i]);
      }
    }
  }
}

// Returns the optimizer's bytes without the tensors of parameters' shapes: LibTorch skips undefined
// ones.
std::string save_rest(Optimizer& optimizer) {
  std::vector<at::Tensor> taken;
  const auto put_back = [&] {
    std::size_t next = 0;
    visit_slots(optimizer, [&](const std::string&, at::Tensor& slot, const at::Tensor&) {
      slot = std::move(taken.at(next++));
    });
  };
  visit_slots(optimizer, [&](const std::string&, at::Tensor& slot, const at::Tensor&) {
    taken.push_back(std::move(slot));
    slot = at::Tensor();
  });
  try {
    std::string bytes = save_optimizer(optimizer);
    put_back();
    return bytes;
  } catch (...) {
    put_back();
    throw;
  }
}

std::function<void(bool)> load_parts(Optimizer& optimizer,
                                     const std::map<std::string, at::Tensor>& tensors,
                                     const std::string& bytes) {
  const std::function<void(bool)> finish = load_optimizer(optimizer, bytes);
  try {
    std::size_t used = 0;
    visit_slots(optimizer, [&](const std::string& name, at::Tensor& slot, const at::Tensor& like) {
      const auto found = tensors.find(name);
      if (found == tensors.end()) return;
      ++used;
      slot = found->second.to(like.device());
    });
    if (used != tensors.size()) {
      throw UsageError("the checkpoint has " + std::to_string(tensors.size()) +
                       " tensors of its state, and only " + std::to_string(used) +
                       " fit. Construct the optimizer as it was when it was saved");
    }
    check_fit(optimizer, Compare::Shapes);
  } catch (...) {
    finish(false);
    throw;
  }
  return finish;
}

}  // namespace

ObjectCodec codec_of(Optimizer& optimizer) {
  ObjectCodec codec{.lines = {type_text(typeid(optimizer))}};
  codec.lines.push_back(std::to_string(optimizer.param_groups().size()) + " parameter groups");
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      codec.lines.push_back("group " + std::to_string(group) + " parameter " + std::to_string(i) +
                            ": " + describe(parameters[i]));
    }
  }
  codec.encode = [&optimizer] { return save_optimizer(optimizer); };
  codec.decode = [&optimizer](const std::string& bytes) {
    return load_optimizer(optimizer, bytes);
  };
  return codec;
}

// Lists tensors individually, so that the ranks can divide them.
CheckpointObject checkpoint_object_of(Optimizer& optimizer) {
  CheckpointObject object{.type = type_text(typeid(optimizer)), .fixed = false};
  object.tensors = [&optimizer] {
    check_fit(optimizer, Compare::Shapes);
    CheckpointObject::Tensors all;
    visit_slots(optimizer, [&](const std::string& name, at::Tensor& slot, const at::Tensor&) {
      if (slot.defined()) all.emplace_back(name, slot);
    });
    return all;
  };
  object.encode = [&optimizer] { return save_rest(optimizer); };
  object.load = [&optimizer](const auto& tensors, const std::string& bytes) {
    return load_parts(optimizer, tensors, bytes);
  };
  return object;
}

}  // namespace detail

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                               ProcessSet process_set) {
  detail::broadcast_encoded("ronde::broadcast_optimizer_state", detail::codec_of(optimizer),
                            {.root = root_rank, .process_set = process_set});
}

}  // namespace ronde
