// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "torch_ext/src/gradients/gradient_exchange.h"

// Note [A rank that cannot do its part] in gradient_reducer.h.
namespace ronde::detail {

/// An operation that agrees with no other that Ronde submits under the name. Nothing travels.
Prepared prepare_refusal(const std::string& name, at::Device device, ProcessSet set,
                         std::chrono::nanoseconds timeout);

/// Whether the engine's text tells of such an operation on some rank.
bool is_refusal_text(const std::string& text);

/// Stands for the exchange that this rank cannot begin: its operation agrees with none of the other
/// ranks' under the parameter's name.
///
/// Thread-safety: none, as GradientReducer.
class RefusedExchange final : public GradientExchange {
 public:
  /// `failure`: why, which proceed() throws if every rank has come with a refusal.
  RefusedExchange(std::exception_ptr failure, at::Tensor parameter);

  std::vector<Prepared> begin(const AllreduceOptions& options) override;
  std::vector<Prepared> proceed(const std::vector<TensorWork>& works,
                                std::optional<bool> is_present) override;

 private:
  const std::exception_ptr failure_;
  const at::Tensor parameter_;
};

}  // namespace ronde::detail
