// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/gradient_guard.h"

#include <ATen/ops/from_blob.h>

#include <utility>

namespace ronde::detail {
namespace {

constexpr const char* kInFlight =
    "its gradient is being reduced, and can be neither read nor written. Call synchronize() of the "
    "DistributedOptimizer first (before clip_grad_norm_, say), and grad() again for a handle that "
    "was taken before it; to step, call step() of the DistributedOptimizer, not of the inner "
    "optimizer";

at::Tensor make_stand_in(const ParameterSubject& subject, const at::Tensor& parameter) {
  at::Tensor tensor = at::for_blob(nullptr, parameter.sizes())
                          .options(parameter.options().requires_grad(false))
                          .target_device(parameter.device())
                          .make_tensor();
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      subject.text(kInFlight));
  return tensor;
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

}  // namespace

void GradientGuard::hide(const ParameterSubject& subject, const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (!stand_in_.defined()) stand_in_ = make_stand_in(subject, parameter);
  version_ = version_of(gradient);
  gradient_ = std::exchange(gradient, stand_in_);
}

bool GradientGuard::restore(const at::Tensor& parameter) {
  if (!gradient_.defined()) return true;
  const at::Tensor gradient = std::exchange(gradient_, {});
  if (parameter.grad().is_same(stand_in_)) parameter.mutable_grad() = gradient;
  // Views of one buffer share a counter, which moves where another's gradient is accumulated.
  return gradient.is_view() || version_of(gradient) == version_;
}

}  // namespace ronde::detail
