// SPDX-License-Identifier: Apache-2.0
#include "delta_exchange.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "ronde/error.h"

namespace ronde::detail {

void DeltaExchange::watch(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& named : parameters) {
    if (named.is_local) continue;
    slots_.push_back({scope_ + "/delta of " + named.name, named.parameter, {}, {}});
  }
}

void DeltaExchange::begin() {
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    slot.before.reset();
    if (slot.parameter.requires_grad()) slot.before = slot.parameter.detach().clone();
  }
}

void DeltaExchange::submit(Slot& slot, const at::Tensor& values, AllreduceOptions options) {
  options.name = slot.operation_name;
  if (values.element_size() <= 2) options.wire_dtype.reset();  // no type is shorter
  Request request = request_for(Collective::Allreduce, values, options);
  request.contributes = slot.parameter.grad().defined();
  slot.work = start_in_place(std::move(request), values, true);
}

void DeltaExchange::combine(const AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  std::exception_ptr error;
  // All of them, also after one has failed: the other ranks wait for them.
  const auto for_each_slot = [this, &error](const auto& part) {
    for (Slot& slot : slots_) {
      if (!slot.before.defined()) continue;
      try {
        part(slot);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
  };
  for_each_slot([&](Slot& slot) {
    // The change, in the parameter's own memory.
    submit(slot, slot.parameter.detach().sub_(slot.before), options);
  });
  for_each_slot([](Slot& slot) { std::exchange(slot.work, {}).wait(); });
  for_each_slot([failed = error != nullptr](Slot& slot) {
    at::Tensor values = slot.parameter.detach();
    if (failed) {
      values.copy_(slot.before);
    } else {
      values.add_(slot.before);
    }
    slot.before.reset();
  });
  if (error) std::rethrow_exception(error);
}

void DeltaExchange::cancel(AllreduceOptions options) {
  const at::NoGradGuard no_grad;
  options.op = ReduceOp::Sum;  // which does not go with the others' Adasum
  for (Slot& slot : slots_) {
    if (!slot.before.defined()) continue;
    slot.parameter.detach().copy_(slot.before);
    submit(slot, slot.before, options);
  }
  for (Slot& slot : slots_) {
    if (!slot.before.defined()) continue;
    try {
      std::exchange(slot.work, {}).wait();
    } catch (const Error&) {
      // As it should be. The caller has the error that says why.
    }
    slot.before.reset();
  }
}

}  // namespace ronde::detail
