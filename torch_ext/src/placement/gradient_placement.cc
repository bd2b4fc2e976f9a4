// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/placement/gradient_placement.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::detail {
namespace {

using torch::autograd::Node;

/// Smaller gradients are cheaper to copy than to place.
constexpr std::size_t kLeastBytes = std::size_t{16} << 10;
/// Limit for views between the operation that makes a gradient and the parameter.
constexpr int kMostViews = 3;

/// Returns whether the running backward computes gradients of parameters only and makes no graph.
bool is_plain_backward() {
  if (c10::GradMode::is_enabled()) return false;
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  return wanted == nullptr || wanted->empty();
}

/// Counts the results of `node` with this number of bytes.
int results_of_size(const Node& node, std::size_t bytes) {
  int count = 0;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (!edge.is_valid()) continue;
    const auto& expected = edge.function->input_metadata(edge.input_nr);
    if (expected.is_nested_tensor()) continue;
    std::size_t size = expected.dtype().itemsize();
    for (const auto& dimension : expected.shape_as_dim_vector()) {
      size *= static_cast<std::size_t>(dimension.guard_int(__FILE__, __LINE__));
    }
    if (size == bytes) ++count;
  }
  return count;
}

/// Returns whether hooks of the program may keep a tensor that flows into `node`. An accumulator
/// has one hook of Ronde's.
bool may_be_kept_before(Node& node, bool is_accumulator) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         node.pre_hooks().size() > (is_accumulator ? 1 : 0);
}

}  // namespace

/// Constant except for members guarded by `mutex`. Never destroyed. In a child of fork() nobody
/// holds the mutex, and no place is handed out: Note [After fork].
struct GradientPlacement {
  static GradientPlacement& instance() {
    static auto* const placement = new GradientPlacement;
    return *placement;
  }

  /// An allocation that may become a gradient.
  struct Candidate {
    std::shared_ptr<GradientPlace> place;  ///< null: it cannot
    int number = 0;                        ///< among those of the running operation
    void* granted = nullptr;               ///< null: LibTorch allocates
  };

  std::shared_ptr<GradientPlace> find(Node& running, std::size_t bytes) const {
    // Hooks of the node itself may keep what they allocate, or a result.
    if (may_be_kept_before(running, false) || !running.post_hooks().empty()) return nullptr;
    for (const torch::autograd::Edge& edge : running.next_edges()) {
      Node* node = edge.function.get();
      for (int views = 0; node != nullptr; ++views) {
        const auto found = of_node.find(node);
        if (may_be_kept_before(*node, found != of_node.end())) break;
        if (found != of_node.end()) {
          if (found->second->bytes_ == bytes) return found->second;
          break;
        }
        if (views == kMostViews || node->num_outputs() != 1) break;
        node = node->next_edge(0).function.get();
      }
    }
    return nullptr;
  }

  /// Describes the current allocation, by the node that runs on this thread.
  Candidate candidate(std::size_t bytes) {
    const std::shared_ptr<Node> running = torch::autograd::get_current_node();
    if (!running || !is_plain_backward()) return {};
    const std::lock_guard lock(mutex);
    const std::shared_ptr<GradientPlace> place = find(*running, bytes);
    if (place && results_of_size(*running, bytes) != 1) return {};
    if (!place || place->seen_ == GradientPlace::kMostSeen) return {};
    Candidate candidate{place, place->seen_++};
    const bool is_lent = place->use_ != GradientPlace::Use::None;
    if (candidate.number != place->wanted_ || is_lent || !place->is_free_()) return candidate;
    place->addresses_[static_cast<std::size_t>(candidate.number)] = place->data_;
    place->use_ = GradientPlace::Use::Allocation;
    lent.emplace(place->data_, place);
    lent_count.fetch_add(1, std::memory_order_relaxed);
    candidate.granted = place->data_;
    return candidate;
  }

  void record_address(const Candidate& candidate, const void* data) {
    const std::lock_guard lock(mutex);
    candidate.place->addresses_[static_cast<std::size_t>(candidate.number)] = data;
  }

  bool reclaim(const void* data) noexcept {
    if (lent_count.load(std::memory_order_relaxed) == 0) return false;
    std::shared_ptr<GradientPlace> place;  // may be the last reference: destroyed after the lock
    const std::lock_guard lock(mutex);
    const auto found = lent.find(data);
    if (found == lent.end()) return false;
    place = std::move(found->second);
    place->use_ = GradientPlace::Use::None;
    lent.erase(found);
    lent_count.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  c10::Allocator* const before = c10::GetCPUAllocator();  ///< LibTorch's own
  std::atomic<std::size_t> places{0};
  std::atomic<std::size_t> lent_count{0};

  std::mutex mutex;
  std::unordered_map<const Node*, std::shared_ptr<GradientPlace>> of_node;
  std::unordered_map<const void*, std::shared_ptr<GradientPlace>> lent;  ///< by address
  bool is_installed = false;
};

/// The allocator in front of LibTorch's own.
class PlacingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    GradientPlacement& state = GradientPlacement::instance();
    GradientPlacement::Candidate candidate;
    if (bytes >= kLeastBytes && state.places.load(std::memory_order_relaxed) > 0) {
      candidate = state.candidate(bytes);
      void* const data = candidate.granted;
      if (data != nullptr) return {data, data, &release, c10::Device(c10::kCPU)};
    }
    c10::DataPtr memory = state.before->allocate(bytes);
    if (candidate.place) state.record_address(candidate, memory.get());
    // raw_deleter() promises this deleter.
    if (auto* const deleter = state.before->raw_deleter()) {
      static_cast<void>(memory.compare_exchange_deleter(deleter, &release));
    }
    return memory;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return GradientPlacement::instance().before->raw_deleter() != nullptr ? &release : nullptr;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    GradientPlacement& state = GradientPlacement::instance();
    if (state.reclaim(data)) return;
    if (auto* const deleter = state.before->raw_deleter()) deleter(data);
  }
};

void place_gradients(const Node* accumulator, std::shared_ptr<GradientPlace> place) {
  GradientPlacement& state = GradientPlacement::instance();
  const std::lock_guard lock(state.mutex);
  state.of_node[accumulator] = std::move(place);
  state.places.store(state.of_node.size(), std::memory_order_relaxed);
  if (state.is_installed) return;
  const int error = ::pthread_atfork([] { GradientPlacement::instance().mutex.lock(); },
                                     [] { GradientPlacement::instance().mutex.unlock(); },
                                     [] {
                                       GradientPlacement::instance().places.store(0);
                                       GradientPlacement::instance().mutex.unlock();
                                     });
  if (error != 0) throw Error("pthread_atfork: " + errno_text(error));
  state.is_installed = true;
  // For good: memory of the allocator may be freed at any later time.
  static auto* const allocator = new PlacingAllocator;
  c10::SetCPUAllocator(allocator);
}

void stop_placing(const Node* accumulator) noexcept {
  GradientPlacement& state = GradientPlacement::instance();
  const std::lock_guard lock(state.mutex);
  state.of_node.erase(accumulator);
  if (state.places.load(std::memory_order_relaxed) == 0) return;  // in a child
  state.places.store(state.of_node.size(), std::memory_order_relaxed);
}

GradientPlace::GradientPlace(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner,
                             std::function<bool()> is_free)
    : data_(data), bytes_(bytes), owner_(std::move(owner)), is_free_(std::move(is_free)) {}

void GradientPlace::learn(const void* data) noexcept {
  if (seen_ == 0 && !is_occupied()) return;
  const std::lock_guard lock(GradientPlacement::instance().mutex);
  for (int i = 0; i < seen_; ++i) {
    if (addresses_[static_cast<std::size_t>(i)] == data) wanted_ = i;
  }
  seen_ = 0;
  addresses_ = {};
  if (is_occupied() && data == data_) use_ = Use::Gradient;
}

}  // namespace ronde::detail
