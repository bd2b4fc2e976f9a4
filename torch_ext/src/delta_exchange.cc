// SPDX-License-Identifier: Apache-2.0
#include "delta_exchange.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "gradient_failures.h"
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

/// The change, in the parameter's own memory.
void DeltaExchange::submit(Slot& slot, AllreduceOptions options) {
  const at::Tensor values = slot.parameter.detach().sub_(slot.before);
  options.name = slot.operation_name;
  if (values.element_size() <= 2) options.wire_dtype.reset();  // no type is shorter
  Request request = request_for(Collective::Allreduce, values, options);
  request.contributes = slot.parameter.grad().defined();
  slot.work = start_in_place(std::move(request), values, true);
}

/// In place of submit().
void DeltaExchange::refuse(Slot& slot, ProcessSet set, std::chrono::nanoseconds timeout) {
  slot.work = start(prepare_refusal(slot.operation_name, slot.parameter.device(), set, timeout));
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
    try {
      submit(slot, options);
    } catch (...) {
      refuse(slot, options.process_set, options.timeout);
      throw;
    }
  });
  for_each_slot([this](Slot& slot) { wait_for(slot); });
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

/// Throws what the work does, in words of the optimiser where another rank has refused.
void DeltaExchange::wait_for(Slot& slot) const {
  try {
    std::exchange(slot.work, {}).wait();
  } catch (const UsageError& error) {
    if (!is_refusal_text(error.what())) throw;
    throw UsageError("ronde::DistributedOptimizer(\"" + scope_ +
                     "\"): the step of another rank failed, so that none counts. Call zero_grad() "
                     "to go on without it. In the engine's words: " +
                     error.what());
  }
}

void DeltaExchange::cancel(ProcessSet set, std::chrono::nanoseconds timeout) noexcept {
  const at::NoGradGuard no_grad;
  // What is thrown here has come after the error of the step, which the caller throws.
  const auto for_each_slot = [this](const auto& part) {
    for (Slot& slot : slots_) {
      if (!slot.parameter.requires_grad()) continue;
      try {
        part(slot);
      } catch (...) {
        continue;
      }
    }
  };
  for_each_slot([](Slot& slot) {
    if (slot.before.defined()) slot.parameter.detach().copy_(slot.before);
  });
  for_each_slot([&](Slot& slot) { refuse(slot, set, timeout); });
  for_each_slot([](Slot& slot) { std::exchange(slot.work, {}).wait(); });
  for (Slot& slot : slots_) slot.before.reset();
}

}  // namespace ronde::detail
