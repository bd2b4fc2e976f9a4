// SPDX-License-Identifier: Apache-2.0
#include "python/src/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "python/src/tensors.h"
#include "ronde/ronde.h"

namespace ronde::c10d_backend {
namespace {

using std::chrono::milliseconds;

/// How long shutdown() waits for ranks that are still at work, or never call it.
constexpr milliseconds kShutdownLimit{30'000};

/// Returns the name of a world: at most 40 characters, the last of them random digits, so that it
/// is unique in every process that the ranks live in.
std::string new_name(const std::string& group) {
  std::string name = "c10d.";
  for (const char letter : group.substr(0, 12)) name += std::isalnum(letter) != 0 ? letter : '_';
  std::random_device random;
  return name + '.' + std::to_string(random()) + std::to_string(random());
}

/// Returns the name of the world and the longest time-out, which rank 0 chooses. The store may hold
/// the choices of earlier starts: ranks count theirs, each its own, and equal counts belong to one
/// start.
std::pair<std::string, milliseconds> agree_on_start(c10d::Store& store, int rank,
                                                    const c10d::Backend::Options& options) {
  const auto count = store.add("ronde/starts/" + std::to_string(rank), 1);
  const std::string key = "ronde/start/" + std::to_string(count);
  if (rank == 0) {
    store.set(key, new_name(options.group_name) + ' ' + std::to_string(options.timeout.count()));
  }
  const std::string text = store.get_to_str(key);
  const auto space = text.find(' ');
  return {text.substr(0, space), milliseconds(std::stoll(text.substr(space)))};
}

/// Adds `part` to the calls that `whole` stands for. The profiler gets one event, with the title of
/// `whole` if that has one.
void append(Started& whole, Started& part) {
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  add(whole.parts, part.parts);
  add(whole.outputs, part.outputs);
  add(*whole.tensors, *part.tensors);
  whole.sequence = part.sequence;
  if (whole.title != nullptr) part.title = nullptr;
}

/// Makes the world of a group, whose ranks meet in `store`.
std::unique_ptr<World> start_world(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   const c10d::Backend::Options& options) {
  const auto [name, timeout] = agree_on_start(*store, rank, options);
  KeyValueStart start;
  start.rank = rank;
  start.size = size;
  start.prefix = "ronde/" + name;
  start.put = [store](const std::string& key, const std::string& value) { store->set(key, value); };
  start.get = [store](const std::string& key) -> std::optional<std::string> {
    if (!store->check({key})) return std::nullopt;
    return store->get_to_str(key);
  };
  try {
    return std::make_unique<World>(
        name, InitOptions{.key_value = std::move(start), .longest_timeout = timeout});
  } catch (const Error& e) {
    throw torch_error(e);
  }
}

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size),
      process_(::getpid()),
      options_(std::move(options)),
      state_(std::make_unique<State>()) {
  state_->world = start_world(std::move(store), rank, size, *options_);
  state_->heap = state_->world->runtime().symmetric_heap();
  set_ = state_->world->set();
  runtime_of(set_).expect_timeout(options_->timeout);
  init();
}

Backend::~Backend() {
  if (::getpid() != process_) {
    static_cast<void>(state_.release());  // a child of fork() has none of the threads
    return;
  }
  state_->world.reset();
  state_->completions->close();
}

void Backend::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  runtime_of(set_).expect_timeout(timeout);
}

void Backend::describe(Call& call, Collective kind, const at::Tensor& output,
                       const at::Tensor& input, Counts shape) {
  call.request.kind = kind;
  call.request.dtype = elements_of(input).dtype;
  call.request.shape = std::move(shape);
  call.request.input = input.const_data_ptr();
  call.request.output = output.mutable_data_ptr();
  set_device(call.request, input);
}

Work Backend::submit(Request request, milliseconds timeout) {
  request.set = set_;
  request.timeout = timeout > kNoTimeout ? timeout : options_->timeout;
  request.caller_orders = !is_point_to_point(request.kind);
  try {
    if (timeout > options_->timeout) runtime_of(set_).expect_timeout(timeout);
    return ronde::submit(std::move(request));
  } catch (const Error& e) {
    throw torch_error(e);
  }
}

Backend::WorkPtr Backend::start(Call call) {
  TORCH_CHECK_WITH(DistBackendError, ::getpid() == process_,  // else a mutex may be held for ever
                   "ronde: a child of fork() cannot use its parent's groups");
  bury_tensors();
  List used = call.inputs;
  used.insert(used.end(), call.outputs.begin(), call.outputs.end());
  used.insert(used.end(), call.others.begin(), call.others.end());
  call.request.keep_alive = call.tensors = keep(std::move(used));
  std::unique_lock lock(order_);
  Started* const whole = coalesced();
  const bool waits = call.request.caller_waits = !call.is_async && whole == nullptr;
  call.sequence = c10d::isP2POp(call.type) ? sequence_.load() : ++sequence_;
  call.parts = {{submit(std::move(call.request), call.timeout), std::move(call.check)}};
  if (whole != nullptr) append(*whole, call);
  lock.unlock();
  auto work = c10::make_intrusive<StartedWork>(getRank(), std::move(call), state_->completions);
  if (waits) work->wait(kNoTimeout);
  return work;
}

/// Returns what this thread coalesces now, null if nothing. The caller holds order_.
Started* Backend::coalesced() {
  const auto own = coalesced_.find(std::this_thread::get_id());
  return own == coalesced_.end() ? nullptr : &own->second.back();
}

void Backend::begin(Started started) {
  const std::lock_guard lock(order_);
  started.tensors = keep({});
  coalesced_[std::this_thread::get_id()].push_back(std::move(started));
}

void Backend::startCoalescing() {
  std::unique_lock lock(order_);
  const auto left = coalesced_.extract(std::this_thread::get_id());
  lock.unlock();  // before tensors are released, which may take the GIL
  begin({.type = c10d::OpType::COALESCED});
}

Backend::WorkPtr Backend::endCoalescing() {
  Started started;
  {
    const std::lock_guard lock(order_);
    const auto own = coalesced_.find(std::this_thread::get_id());
    TORCH_CHECK(own != coalesced_.end(), "ronde: endCoalescing() without startCoalescing()");
    started = std::move(own->second.back());
    own->second.pop_back();
    if (own->second.empty()) {
      coalesced_.erase(own);
    } else {
      append(own->second.back(), started);
    }
  }
  return c10::make_intrusive<StartedWork>(getRank(), std::move(started), state_->completions);
}

/// Returns a work that stands for several calls, and for the profiler is one.
Backend::WorkPtr Backend::together(Started started, std::size_t count,
                                   const std::function<void(std::size_t)>& call) {
  begin(std::move(started));
  try {
    for (std::size_t i = 0; i < count; ++i) call(i);
  } catch (...) {
    endCoalescing();
    throw;
  }
  return endCoalescing();
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& opts) {
  const auto place = std::find(ranks.begin(), ranks.end(), getRank());
  if (place == ranks.end()) return nullptr;
  return merge(store, opts, static_cast<int>(place - ranks.begin()),
               static_cast<int>(ranks.size()));
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const c10::intrusive_ptr<Options>& opts,
                                                 const int& rank, const int& size) {
  return c10::make_intrusive<Backend>(store, rank, size, opts);
}

std::int64_t Backend::greatest(std::int64_t mine) {
  List tensors{at::full({}, mine, at::kLong)};
  allreduce(tensors, {.reduceOp = c10d::ReduceOp::MAX})->wait(kNoTimeout);
  return tensors.front().item<std::int64_t>();
}

/// Finds the lowest offset that is free on every rank: each searches from the highest that any has
/// found, until that one is free on all. The ranks may have released different blocks.
at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const auto bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  const std::shared_ptr<SymmetricHeap> heap = state_->heap;
  std::int64_t highest = 0;
  while (heap && bytes > 0 && options.device().is_cpu()) {
    const auto place = heap->find(bytes, static_cast<std::size_t>(highest));
    const std::int64_t mine = place ? static_cast<std::int64_t>(*place) : kNone;
    highest = greatest(mine);
    if (highest == kNone) break;
    const auto offset = static_cast<std::size_t>(highest);
    const bool placed = mine == highest && heap->reserve(offset, bytes);
    if (greatest(placed ? 0 : 1) == 0) {
      return at::from_blob(
          heap->own(offset), {size}, [heap, offset](void*) { heap->release(offset); }, options);
    }
    if (placed) heap->release(offset);
  }
  return at::empty({size}, options);
}

c10d::ErrorType Backend::getError() {
  try {
    return runtime_of(set_).failure() ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::SUCCESS;
  } catch (const NotInitializedError&) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  try {
    runtime_of(set_).abort("torch.distributed's abort() was called");
  } catch (const NotInitializedError&) {  // it was shut down
  }
}

void Backend::shutdown() {
  if (::getpid() != process_) return;
  try {
    state_->world->shutdown(std::min<std::chrono::nanoseconds>(kShutdownLimit, options_->timeout));
  } catch (const Error&) {  // the group has failed: its operations have said so, and so has the log
  }
}

/// For Python, without the GIL: `store` may be Python's.
c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, std::chrono::milliseconds timeout,
                                               std::string group,
                                               std::vector<std::uint64_t> global_ranks) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("ronde", timeout);
  options->group_name = std::move(group);
  options->global_ranks_in_group = std::move(global_ranks);
  return c10::make_intrusive<Backend>(std::move(store), rank, size, std::move(options));
}

}  // namespace ronde::c10d_backend

PYBIND11_MODULE(_c10d, module) {
  py::module::import("torch._C._distributed_c10d");  // has the types of what goes in and out
  module.def("make", torch::wrap_pybind_function_no_gil(ronde::c10d_backend::make_backend),
             py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("group"), py::arg("global_ranks"));
}
