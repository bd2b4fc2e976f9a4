// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/placement/gradient_views.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ronde/ronde.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kUnit = SymmetricHeap::kAlignment;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

/// Returns the strides that autograd gives gradients.
std::vector<std::int64_t> strides_of_gradient(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta)).strides().vec();
}

/// Returns whether the program has a handle to the gradient or to its buffer.
bool is_shared(const at::Tensor& gradient) {
  return gradient.use_count() > 1 || gradient.storage().use_count() > 1;
}

/// Warns if there is a symmetric heap, but no room in it for this number of bytes.
void warn_if_full(std::size_t bytes, ProcessSet set) {
  const Runtime& runtime = runtime_of(set);
  const auto heap = runtime.symmetric_heap();
  if (!heap || runtime.topology().rank != 0) return;
  rank_log(set).warning(
      "there is no room for gradients of " + std::to_string(bytes) +
      " bytes in the symmetric heap of " + std::to_string(heap->bytes()) + ", of which " +
      std::to_string(heap->reserved_bytes()) +
      " are taken, so they are staged, which is slower: raise RONDE_SYMMETRIC_HEAP_BYTES");
}

std::int64_t greatest(std::int64_t mine, const std::string& name, ProcessSet set,
                      std::chrono::nanoseconds timeout) {
  const CallerWaits waits;
  const at::Tensor number = at::full({}, mine, at::kLong);
  return start_max(name, number, set, timeout).wait().item<std::int64_t>();
}

}  // namespace

GradientView::GradientView(const at::Tensor& parameter, std::shared_ptr<SymmetricBlock> block,
                           std::size_t offset, std::shared_ptr<GradientCounters> counters)
    : block_(std::move(block)), counters_(std::move(counters)) {
  tensor_ = at::from_blob(
      block_->data() + offset, parameter.sizes(), strides_of_gradient(parameter),
      [block = block_](void*) {}, parameter.options().requires_grad(false));
  flat_ = tensor_.as_strided({parameter.numel()}, {1});
}

bool GradientView::holds(const at::Tensor& gradient) const {
  return gradient.layout() == at::kStrided && !gradient.is_conj() && !gradient.is_neg() &&
         gradient.const_data_ptr() == tensor_.const_data_ptr() &&
         gradient.scalar_type() == tensor_.scalar_type() && gradient.sizes() == tensor_.sizes() &&
         gradient.strides() == tensor_.strides();
}

void GradientView::evict(const at::Tensor& kept) const {
  if (!kept.defined() || !kept.has_storage()) return;
  c10::StorageImpl& storage = *kept.storage().unsafeGetStorageImpl();
  if (storage.data() != tensor_.const_data_ptr()) return;
  storage.set_data_ptr(c10::GetCPUAllocator()->clone(storage.data(), storage.nbytes()));
}

void GradientView::adopt(at::Tensor& gradient, bool had_gradient, const at::Tensor& incoming) {
  const bool is_dense = gradient.layout() == at::kStrided;
  if (place_ && is_dense) place_->learn(gradient.const_data_ptr());
  if (holds(gradient)) {
    (had_gradient ? counters_->accumulated : counters_->placed).fetch_add(1);
    return;
  }
  if (is_occupied()) evict(incoming);
  if (!is_dense || gradient.requires_grad() || is_occupied()) return;
  if (had_gradient && is_shared(gradient)) return;
  const at::NoGradGuard no_grad;
  tensor_.copy_(gradient);
  gradient = tensor_;
  counters_->copied.fetch_add(1);
  counters_->copied_bytes.fetch_add(tensor_.nbytes());
}

void GradientView::place_gradients(const torch::autograd::Node* accumulator,
                                   std::function<bool()> is_free) {
  place_ = std::make_shared<GradientPlace>(static_cast<std::byte*>(tensor_.mutable_data_ptr()),
                                           tensor_.nbytes(), block_, std::move(is_free));
  detail::place_gradients(accumulator, place_);
}

std::vector<std::optional<GradientView>> make_gradient_views(
    const std::string& scope, const std::vector<at::Tensor>& parameters, ProcessSet set,
    std::chrono::nanoseconds timeout) {
  const bool on_cpu = std::all_of(parameters.begin(), parameters.end(),
                                  [](const at::Tensor& parameter) { return parameter.is_cpu(); });
  if (!on_cpu) return {};
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(bytes);
    bytes += aligned(parameter.nbytes());
  }
  if (bytes == 0) return {};
  const auto block = make_symmetric_block(scope + "/gradient views", bytes, set, timeout);
  if (!block) {
    warn_if_full(bytes, set);
    return {};
  }
  std::vector<std::optional<GradientView>> views(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].numel() == 0) continue;
    views[i].emplace(parameters[i], block, offsets[i], CurrentCounters<GradientCounters>::of(set));
  }
  return views;
}

std::shared_ptr<SymmetricBlock> make_symmetric_block(const std::string& name, std::size_t bytes,
                                                     ProcessSet set,
                                                     std::chrono::nanoseconds timeout) {
  const std::shared_ptr<SymmetricHeap> heap = runtime_of(set).symmetric_heap();
  if (!heap) return nullptr;
  // Finds the lowest offset that is free on every rank: each searches from the highest that any has
  // found, until that one is free on all. The ranks may have released different blocks.
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t highest = 0;
  for (;;) {
    const auto place = heap->find(bytes, static_cast<std::size_t>(highest));
    const std::int64_t mine = place ? static_cast<std::int64_t>(*place) : kNone;
    highest = greatest(mine, name, set, timeout);
    if (highest == kNone) return nullptr;
    const auto offset = static_cast<std::size_t>(highest);
    std::shared_ptr<SymmetricBlock> block;
    if (mine == highest && heap->reserve(offset, bytes)) {
      block = std::make_shared<SymmetricBlock>(heap, offset);
    }
    if (greatest(block ? 0 : 1, name, set, timeout) == 0) return block;
  }
}

}  // namespace ronde::detail
