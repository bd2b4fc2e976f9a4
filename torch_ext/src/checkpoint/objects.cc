// SPDX-License-Identifier: Apache-2.0
// Objects as tensors and bytes. Optimizers are in state/optimizer_state.cc, random generators in
// state/random.cc.
#include <ATen/ops/empty_strided.h>

#include <memory>
#include <string_view>

#include "ronde/error.h"
#include "ronde/torch/checkpoint_object.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

using TensorsByName = std::map<std::string, at::Tensor>;

std::string_view bytes_in(const at::Tensor& row_major) {
  return {static_cast<const char*>(row_major.const_data_ptr()), row_major.nbytes()};
}

// False where elements of `target` share memory, and `values` have different ones there.
bool can_hold(const at::Tensor& target, const at::Tensor& values) {
  if (!may_overlap_itself(target)) return true;
  const at::Tensor alike =
      at::empty_strided(target.sizes(), target.strides(), values.scalar_type());
  write_values(alike, values);
  return bytes_in(plain_values(alike)) == bytes_in(plain_values(values));
}

// Each parameter and buffer keeps its memory, which gradients and other ranks may refer to. What it
// returns cannot fail.
std::function<void(bool)> copy_into(const CheckpointObject::Tensors& targets,
                                    const TensorsByName& tensors) {
  TensorsByName ready = tensors;
  for (const auto& [name, target] : targets) {
    if (!target.defined()) continue;
    const auto found = ready.find(name);
    if (found == ready.end()) throw UsageError("there is no " + name);
    if (can_hold(target, found->second)) {
      // A copy between devices to memory that is not row-major allocates on the device.
      if (!target.is_cpu() && !target.is_contiguous()) {
        found->second = at::empty_like(target.detach()).copy_(found->second);
      }
      continue;
    }
    throw UsageError(name + " (" + describe(target) +
                     ") has elements here that share memory (it was expanded), and are different "
                     "ones in the checkpoint. Call contiguous() where it is made");
  }
  return [targets, ready = std::move(ready)](bool keep) {
    if (!keep) return;
    for (const auto& [name, target] : targets) {
      if (target.defined()) write_values(target, ready.at(name));
    }
  };
}

/// A model's parameters and buffers are loaded into their memory.
CheckpointObject object_of_model(std::function<CheckpointObject::Tensors()> parameters,
                                 std::function<CheckpointObject::Tensors()> buffers) {
  CheckpointObject object;
  object.tensors = std::move(parameters);
  object.buffers = std::move(buffers);
  object.load = [parameters = object.tensors, buffers = object.buffers](
                    const TensorsByName& tensors, const std::string&) {
    const auto first = copy_into(parameters(), tensors);
    const auto second = copy_into(buffers(), tensors);
    return [first, second](bool keep) {
      first(keep);
      second(keep);
    };
  };
  return object;
}

template <typename List>
CheckpointObject::Tensors pairs_of(const List& list) {
  CheckpointObject::Tensors pairs;
  for (const auto& item : list) pairs.emplace_back(item.name, item.value);
  return pairs;
}

/// LRScheduler::step_count_ is protected.
struct StepCount : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&StepCount::step_count_);
  }
};

}  // namespace

CheckpointObject checkpoint_object_of(torch::nn::Module* module) {
  if (module == nullptr) {
    throw UsageError("the module holder is empty: construct the module first");
  }
  return object_of_model([module] { return module->named_parameters().pairs(); },
                         [module] { return module->named_buffers().pairs(); });
}

CheckpointObject checkpoint_object_of(const torch::jit::Module& module) {
  return object_of_model([module] { return pairs_of(module.named_parameters()); },
                         [module] { return pairs_of(module.named_buffers()); });
}

CheckpointObject checkpoint_object_of(at::Tensor& tensor) {
  CheckpointObject object{.fixed = false};
  object.tensors = [&tensor] { return CheckpointObject::Tensors{{"", tensor}}; };
  object.load = [&tensor](const TensorsByName& tensors,
                          const std::string&) -> std::function<void(bool)> {
    const at::Tensor saved = tensors.empty() ? at::Tensor() : tensors.begin()->second;
    const bool fits = saved.defined() && tensor.defined() && tensor.sizes() == saved.sizes() &&
                      tensor.scalar_type() == saved.scalar_type() && can_hold(tensor, saved);
    if (fits) return copy_into({{"", tensor}}, tensors);
    const bool moves = saved.defined() && tensor.defined();
    const at::Tensor other = moves ? saved.to(tensor.device()) : saved;
    return [&tensor, other](bool keep) {
      if (keep) tensor = other;
    };
  };
  return object;
}

CheckpointObject checkpoint_object_of(ObjectCodec codec) {
  const auto shared = std::make_shared<const ObjectCodec>(std::move(codec));
  CheckpointObject object{.type = shared->lines.at(0)};
  object.encode = [shared] { return shared->encode(); };
  object.load = [shared](const TensorsByName&, const std::string& bytes) {
    return shared->decode(bytes);
  };
  return object;
}

CheckpointObject checkpoint_object_of(torch::optim::LRScheduler& scheduler) {
  return checkpoint_object_of(codec_of_number(StepCount::of(scheduler)));
}

}  // namespace ronde::detail
