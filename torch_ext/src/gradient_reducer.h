// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradient_views.h"
#include "ronde/options.h"
#include "ronde/torch/distributed_optimizer.h"
#include "ronde/torch/work.h"

namespace ronde::detail {

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
};

/// The parameters of `inner`, in its order, with their names. Throws UsageError if one has no name
/// or occurs twice. Of several names of one tensor (tied weights) the first is taken.
std::vector<NamedParameter> match_parameters(
    const torch::optim::Optimizer& inner,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters);

/// What must be equal on all ranks, a line each.
std::vector<std::string> state_parameters(const std::vector<NamedParameter>& parameters,
                                          const DistributedOptimizerOptions& options);

/// Throws UsageError for numbers that make no sense.
void check_options(const DistributedOptimizerOptions& options);

/// Throws UsageError if `inner` got parameters after its wrapper was constructed.
void check_same_parameters(const torch::optim::Optimizer& inner, std::size_t expected);

/// Submits the gradient of each parameter it watches as soon as backward has accumulated it, and
/// waits for them in synchronize().
///
/// Thread-safety: none of its own. The hooks run on the threads of autograd, which for tensors on
/// the CPU is the one that calls backward().
///
/// Note [Why a hook before and one after]: the hook after accumulation submits. The one before it
/// refuses a backward that would add to memory which is being reduced right now, and remembers
/// whether a gradient existed: autograd may make its own tensor the gradient if none did.
///
/// Note [Gradient views]
/// A gradient that is reduced where it lies must lie where the peers can reach it. With views the
/// hook after accumulation sees to it, whoever made or replaced the gradient: at best backward has
/// written it there (Note [Placing gradients]) or added to what was there (zero_grad(false));
/// otherwise it is copied, once, and the view becomes the gradient.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  GradientReducer(const std::string& scope, DistributedOptimizerOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Installs the hooks. Frozen parameters are kept, and watched once they require grad. Throws
  /// UsageError if a parameter has another DistributedOptimizer. Collective if options ask for
  /// gradient views.
  void watch(std::vector<NamedParameter> parameters);
  std::size_t parameter_count() const noexcept { return slots_.size(); }

  /// Submits what backward did not, and waits for everything.
  void synchronize();
  /// The reduced gradients were used: backward may run again.
  void stepped() noexcept;
  /// The gradients are to be dropped. Throws UsageError while reductions are in flight.
  void restart();

  void enter_no_sync() noexcept { ++no_sync_depth_; }
  void leave_no_sync() noexcept { --no_sync_depth_; }

  // For the hooks.
  void before_accumulation(std::size_t index);
  void after_accumulation(std::size_t index, const at::Tensor& incoming);

 private:
  /// Reduced: synchronize() is done, step() is not. Failed: synchronize() threw.
  enum class Phase { Accumulating, Reduced, Failed };

  struct Slot {
    std::string name;            // the parameter's
    std::string operation_name;  // of its reduction
    at::Tensor parameter;
    std::shared_ptr<torch::autograd::Node> accumulator;  // null while frozen
    torch::autograd::FunctionPreHook* before = nullptr;
    std::uintptr_t after = 0;
    std::optional<GradientView> view;
    bool had_gradient = false;
    int passes = 0;
    // Of the reduction in flight.
    bool submitted = false;
    bool stands_in = false;    // `reduced` is a buffer of zeros, not the parameter's gradient
    bool copies_back = false;  // the view is reduced, and is not the gradient
    at::Tensor reduced;
    TensorWork work;
  };

  void install_hooks(std::size_t index);
  void remove_hooks(Slot& slot) noexcept;
  void make_views();
  void submit(Slot& slot);
  void submit_view(Slot& slot, const AllreduceOptions& options);
  void submit_rest();
  void finish(Slot& slot);
  [[noreturn]] void refuse(const Slot& slot, const std::string& text) const;

  const std::string scope_;
  const DistributedOptimizerOptions options_;
  std::vector<Slot> slots_;
  Phase phase_ = Phase::Accumulating;
  int no_sync_depth_ = 0;
  bool is_lazy_ = false;  // reductions wait until this rank does: it computes on all cores
};

}  // namespace ronde::detail
