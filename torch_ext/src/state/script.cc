// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/script.h"

#include <set>

#include "ronde/torch/broadcast.h"
#include "ronde/torch/replicas.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {

torch::OrderedDict<std::string, at::Tensor> named_parameters(const torch::jit::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> parameters("Parameter");
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value.unsafeGetTensorImpl()).second) continue;
    parameters.insert(item.name, item.value);
  }
  return parameters;
}

void broadcast_parameters(const torch::jit::Module& module, int root_rank, ProcessSet process_set) {
  torch::OrderedDict<std::string, at::Tensor> tensors("Tensor");
  for (const auto& [name, tensor] : detail::tensors_in(module)) tensors.insert(name, tensor);
  broadcast_parameters(tensors, root_rank, process_set);
}

void check_replicas(const torch::jit::Module& module, ProcessSet process_set) {
  check_replicas(named_parameters(module), process_set);
}

}  // namespace ronde
