// SPDX-License-Identifier: Apache-2.0
// The parameters are copied before the step. After it each is replaced by its change, which is
// reduced in the parameter's memory, and the copy is added to the result.
#include "torch_ext/src/optimizer/delta_exchange.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "torch_ext/src/gradients/gradient_exchange.h"
#include "torch_ext/src/gradients/gradient_reducer.h"

namespace ronde::detail {

void DeltaExchange::watch(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& named : parameters) {
    Slot& slot = slots_.emplace_back();
    slot.operation_name = scope_ + "/delta of " + named.name;
    slot.parameter = named.parameter;
    slot.is_local = named.is_local;
  }
}

/// Chooses alike on all ranks, whether they combine or cancel.
void DeltaExchange::choose(const GradientReducer& reducer) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].is_exchanged = !slots_[i].is_local && reducer.takes_part(i);
  }
}

void DeltaExchange::begin(const GradientReducer& reducer) {
  const at::NoGradGuard no_grad;
  choose(reducer);
  for (Slot& slot : slots_) {
    slot.before.reset();
    const bool may_change = slot.is_exchanged || slot.parameter.grad().defined();
    if (may_change) slot.before = slot.parameter.detach().clone();
  }
}

/// Submits the change, in the parameter's own memory.
void DeltaExchange::submit(Slot& slot, AllreduceOptions options, std::uint64_t digest) {
  const at::Tensor values = slot.parameter.detach().sub_(slot.before);
  options.name = slot.operation_name;
  Request request = request_for(Collective::Allreduce, values, options);
  if (size_of(request.dtype) <= 2) request.wire_dtype.reset();  // no type is shorter
  request.contributes = slot.parameter.grad().defined();
  request.digest = digest;
  slot.work = start_in_place(std::move(request), values, true);
}

/// Replaces submit() where an error is being handled.
void DeltaExchange::refuse(Slot& slot, ProcessSet set, std::chrono::nanoseconds timeout) {
  slot.work = start(
      prepare_refusal(slot.operation_name, slot.parameter, set, timeout, std::current_exception()));
}

bool DeltaExchange::combine(const AllreduceOptions& options, std::uint64_t digest) {
  const at::NoGradGuard no_grad;
  FirstError error;
  // Continues after a failure, as the other ranks wait for all slots.
  const auto for_each_slot = [this, &error](const auto& part) {
    for (Slot& slot : slots_) error.attempt([&] { part(slot); });
  };
  for_each_slot([&](Slot& slot) {
    if (!slot.is_exchanged) return;
    try {
      submit(slot, options, std::exchange(digest, 0));
    } catch (...) {
      refuse(slot, options.process_set, options.timeout);
      throw;
    }
  });
  bool agree = true;
  for_each_slot([&](Slot& slot) {
    if (!slot.is_exchanged) return;
    const TensorWork work = std::exchange(slot.work, {});
    work.wait();
    agree = work.digests_agree() && agree;
  });
  for_each_slot([failed = static_cast<bool>(error)](Slot& slot) {
    const at::Tensor before = std::exchange(slot.before, {});
    at::Tensor values = slot.parameter.detach();
    if (failed && before.defined()) {
      values.copy_(before);
    } else if (slot.is_exchanged) {
      values.add_(before);
    }
  });
  error.rethrow();
  return agree;
}

void DeltaExchange::cancel(const GradientReducer& reducer) noexcept {
  const at::NoGradGuard no_grad;
  const DistributedOptimizerOptions& options = reducer.options();
  choose(reducer);
  FirstError ignored;  // the caller throws the error of the step, which came first
  const auto for_each_slot = [this, &ignored](const auto& part) {
    for (Slot& slot : slots_) ignored.attempt([&] { part(slot); });
  };
  for_each_slot([](Slot& slot) {
    if (slot.before.defined()) slot.parameter.detach().copy_(slot.before);
  });
  for_each_slot([&](Slot& slot) {
    if (slot.is_exchanged) refuse(slot, options.process_set, options.timeout);
  });
  for_each_slot([](Slot& slot) { std::exchange(slot.work, {}).wait(); });
  for (Slot& slot : slots_) slot.before.reset();
}

}  // namespace ronde::detail
