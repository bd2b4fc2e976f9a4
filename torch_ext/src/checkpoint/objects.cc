// SPDX-License-Identifier: Apache-2.0
// Objects as tensors and bytes. Optimizers are in state/optimizer_state.cc, random generators in
// state/random.cc.
#include <torch/utils.h>

#include <memory>

#include "ronde/error.h"
#include "ronde/torch/checkpoint_object.h"

namespace ronde::detail {
namespace {

using TensorsByName = std::map<std::string, at::Tensor>;

// Each parameter and buffer keeps its memory, which gradients and other ranks may refer to.
std::function<void(bool)> copy_into(const CheckpointObject::Tensors& targets,
                                    const TensorsByName& tensors) {
  for (const auto& [name, target] : targets) {
    if (target.defined() && !tensors.contains(name)) throw UsageError("there is no " + name);
  }
  return [targets, tensors](bool keep) {
    if (!keep) return;
    const torch::NoGradGuard no_grad;
    for (const auto& [name, target] : targets) {
      if (target.defined()) target.copy_(tensors.at(name));
    }
  };
}

/// Its name for derived classes is protected.
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
  CheckpointObject object;
  object.tensors = [module] { return module->named_parameters().pairs(); };
  object.buffers = [module] { return module->named_buffers().pairs(); };
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

CheckpointObject checkpoint_object_of(at::Tensor& tensor) {
  CheckpointObject object{.fixed = false};
  object.tensors = [&tensor] { return CheckpointObject::Tensors{{"", tensor}}; };
  object.load = [&tensor](const TensorsByName& tensors,
                          const std::string&) -> std::function<void(bool)> {
    const at::Tensor saved = tensors.empty() ? at::Tensor() : tensors.begin()->second;
    const bool fits = saved.defined() && tensor.defined() && tensor.sizes() == saved.sizes() &&
                      tensor.scalar_type() == saved.scalar_type();
    if (fits) return copy_into({{"", tensor}}, tensors);
    return [&tensor, saved](bool keep) {
      if (!keep) return;
      const bool moves = saved.defined() && tensor.defined();
      tensor = moves ? saved.to(tensor.device()) : saved;
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
