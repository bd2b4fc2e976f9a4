// SPDX-License-Identifier: Apache-2.0
#include "delta_exchange.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

namespace ronde::detail {

void DeltaExchange::watch(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& named : parameters) {
    if (named.is_local) continue;
    slots_.push_back({scope_ + "/delta of " + named.name, named.parameter, {}});
  }
}

void DeltaExchange::begin() {
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    slot.before.reset();
    if (slot.parameter.requires_grad()) slot.before = slot.parameter.detach().clone();
  }
}

/// The change, in the parameter's own memory.
std::vector<TensorWork> DeltaExchange::submit(const AllreduceOptions& options) {
  std::vector<TensorWork> works;
  for (const Slot& slot : slots_) {
    if (!slot.before.defined()) continue;
    const at::Tensor delta = slot.parameter.detach().sub_(slot.before);
    AllreduceOptions named = options;
    named.name = slot.operation_name;
    Request request = request_for(Collective::Allreduce, delta, named);
    request.contributes = slot.parameter.grad().defined();
    works.push_back(start_in_place(std::move(request), delta, true));
  }
  return works;
}

void DeltaExchange::combine(const AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<TensorWork> works;
  std::exception_ptr error;
  try {
    works = submit(options);
  } catch (...) {
    error = std::current_exception();
  }
  for (const TensorWork& work : works) {
    try {
      work.wait();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  for (Slot& slot : slots_) {
    if (!slot.before.defined()) continue;
    at::Tensor values = slot.parameter.detach();
    if (error) {
      values.copy_(slot.before);
    } else {
      values.add_(slot.before);
    }
    slot.before.reset();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace ronde::detail
