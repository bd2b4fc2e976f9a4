// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/fakes/fake_nccl_state.h"

namespace ronde::test {
namespace {

using namespace ronde::test::fake_nccl;
using nccl::Communicator;
using nccl::Result;

std::atomic<FakeNccl::State*> the_one{nullptr};

FakeNccl::State& state() {
  return *the_one.load();
}

/// What the calling thread has called between ncclGroupStart and ncclGroupEnd.
struct CallsOfThread {
  int depth = 0;
  std::map<Communicator, Launch> launches;
};
CallsOfThread& of_thread() {
  static thread_local CallsOfThread calls;
  return calls;
}

/// Enters a function of the library, which FakeCuda counts and fails like its own.
struct EnterNccl {
  template <typename Body>
  Result operator()(const char* symbol, Body body) const {
    FakeNccl::State& s = state();
    ++s.calls_in_progress;
    const std::shared_ptr<void> leave(nullptr, [&s](void*) { --s.calls_in_progress; });
    const Result result = fake::Enter()(symbol, [](fake::State&) { return nccl::kSuccess; });
    return result == nccl::kSuccess ? body(s) : result;
  }
};

template <fake::Symbol kSymbol, typename Body>
void define(Functions& functions, Body body) {
  fake::define<kSymbol, EnterNccl>(functions, body);
}

using S = FakeNccl::State;

void add_communicators(Functions& functions) {
  define<"ncclGetVersion">(
      functions, [](S& s, int* version) { return *version = s.options.version, nccl::kSuccess; });
  functions["ncclGetErrorString"] = address(+[](Result) { return "the fake says so"; });
  functions["ncclGetLastError"] = address(+[](Communicator) { return ""; });
  define<"ncclGetUniqueId">(functions, [](S& s, UniqueId* id) {
    const std::lock_guard lock(s.mutex);
    *id = {};
    const std::uint64_t number = ++s.last_number;
    std::memcpy(id->bytes.data(), &number, sizeof number);
    return nccl::kSuccess;
  });
  define<"ncclCommInitRankConfig">(
      functions,
      [](S& s, Communicator* communicator, int size, UniqueId id, int rank,
         CommunicatorConfig* config) { return s.init(communicator, size, id, rank, *config); });
  define<"ncclCommGetAsyncError">(functions, [](S& s, Communicator communicator, Result* result) {
    return s.look(communicator, result);
  });
  define<"ncclCommFinalize">(
      functions, [](S& s, Communicator communicator) { return s.finalize(communicator); });
  define<"ncclCommDestroy">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, false); });
  define<"ncclCommAbort">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, true); });
}

void add_calls(Functions& functions) {
  define<"ncclGroupStart">(functions, [](S&) { return ++of_thread().depth, nccl::kSuccess; });
  define<"ncclGroupEnd">(functions, [](S& s) {
    CallsOfThread& mine = of_thread();
    if (--mine.depth > 0) return nccl::kSuccess;
    Result result = nccl::kSuccess;
    for (auto& [communicator, launch] : std::exchange(mine.launches, {})) {
      result = s.launch(communicator, launch);
    }
    return result;
  });
  define<"ncclAllReduce">(
      functions, [](S& s, const void* input, void* output, std::size_t count, DataTypeNumber type,
                    ReductionNumber op, Communicator communicator, StreamHandle stream) {
        return s.take({Kind::AllReduce, input, output, count, type, op}, communicator, stream);
      });
  define<"ncclReduceScatter">(
      functions, [](S& s, const void* input, void* output, std::size_t count, DataTypeNumber type,
                    ReductionNumber op, Communicator communicator, StreamHandle stream) {
        return s.take({Kind::ReduceScatter, input, output, count, type, op}, communicator, stream);
      });
  define<"ncclBroadcast">(functions, [](S& s, const void* input, void* output, std::size_t count,
                                        DataTypeNumber type, int root, Communicator communicator,
                                        StreamHandle stream) {
    return s.take({Kind::Broadcast, input, output, count, type, kSum, root}, communicator, stream);
  });
  define<"ncclAllGather">(
      functions, [](S& s, const void* input, void* output, std::size_t count, DataTypeNumber type,
                    Communicator communicator, StreamHandle stream) {
        return s.take({Kind::AllGather, input, output, count, type}, communicator, stream);
      });
  define<"ncclSend">(functions, [](S& s, const void* input, std::size_t count, DataTypeNumber type,
                                   int peer, Communicator communicator, StreamHandle stream) {
    return s.take({Kind::Send, input, nullptr, count, type, kSum, peer}, communicator, stream);
  });
  define<"ncclRecv">(functions, [](S& s, void* output, std::size_t count, DataTypeNumber type,
                                   int peer, Communicator communicator, StreamHandle stream) {
    return s.take({Kind::Recv, nullptr, output, count, type, kSum, peer}, communicator, stream);
  });
}

void add_operators(Functions& functions) {
  define<"ncclRedOpCreatePreMulSum">(
      functions, [](S& s, ReductionNumber* op, void* factor, DataTypeNumber type, int residence,
                    Communicator communicator) {
        if (!s.caller(communicator, "making an operator") || residence != kHostScalar) {
          return kInvalidArgument;
        }
        const std::lock_guard lock(s.mutex);
        *op = ++s.last_operator;
        s.factors[*op] = number_at(factor, type);
        return nccl::kSuccess;
      });
  define<"ncclRedOpDestroy">(functions, [](S& s, ReductionNumber op, Communicator communicator) {
    if (!s.caller(communicator, "destroying an operator")) return kInvalidArgument;
    const std::lock_guard lock(s.mutex);
    return s.factors.erase(op) == 1 ? nccl::kSuccess : kInvalidArgument;
  });
}

void add_memory(Functions& functions) {
  define<"ncclMemAlloc">(functions, [](S& s, void** memory, std::size_t bytes) {
    cuda::DevicePointer allocated = 0;
    if (s.driver->allocate(&allocated, bytes) != cuda::kSuccess) return kUnhandledCudaError;
    *memory = reinterpret_cast<void*>(allocated);
    const std::lock_guard lock(s.mutex);
    return s.allocations.insert(*memory), nccl::kSuccess;
  });
  define<"ncclMemFree">(functions, [](S& s, void* memory) {
    const auto freed = s.driver->free(reinterpret_cast<cuda::DevicePointer>(memory));
    if (freed != cuda::kSuccess) return kUnhandledCudaError;
    const std::lock_guard lock(s.mutex);
    return s.allocations.erase(memory) == 1 ? nccl::kSuccess : kInvalidArgument;
  });
  define<"ncclCommRegister">(
      functions, [](S& s, Communicator communicator, void*, std::size_t, void** handle) {
        if (!s.caller(communicator, "registering")) return kInvalidArgument;
        const std::lock_guard lock(s.mutex);
        *handle = reinterpret_cast<void*>(++s.last_number);
        s.registrations[*handle] = communicator;
        return nccl::kSuccess;
      });
  define<"ncclCommWindowRegister">(functions, [](S& s, Communicator communicator, void* memory,
                                                 std::size_t bytes, Window* window, int flags) {
    const auto caller = s.caller(communicator, "registering a window");
    if (!caller || flags != kSymmetricWindow) return kInvalidArgument;
    // All ranks bring as much.
    const std::string what = "a window of " + std::to_string(bytes);
    const Result met = s.meet(*caller->ranks, caller->rank, what, caller.get());
    if (met != nccl::kSuccess || !s.options.makes_windows) return met;
    const std::lock_guard lock(s.mutex);
    if (s.allocations.count(memory) == 0) s.misuses.add("a window of memory that is not NCCL's");
    *window = reinterpret_cast<Window>(++s.last_number);
    s.registrations[*window] = communicator;
    s.windows[*window] = {static_cast<const std::byte*>(memory), bytes};
    return nccl::kSuccess;
  });
  define<"ncclCommWindowDeregister">(functions, [](S& s, Communicator communicator, Window window) {
    if (!s.caller(communicator, "deregistering a window")) return kInvalidArgument;
    const std::lock_guard lock(s.mutex);
    s.windows.erase(window);
    return s.registrations.erase(window) == 1 ? nccl::kSuccess : kInvalidArgument;
  });
  define<"ncclCommDeregister">(functions, [](S& s, Communicator communicator, void* handle) {
    if (!s.caller(communicator, "deregistering")) return kInvalidArgument;
    const std::lock_guard lock(s.mutex);
    return s.registrations.erase(handle) == 1 ? nccl::kSuccess : kInvalidArgument;
  });
}

}  // namespace

Result FakeNccl::State::take(const Call& call, Communicator communicator, StreamHandle stream) {
  CallsOfThread& mine = of_thread();
  Launch& launched = mine.launches[communicator];
  launched.stream = stream;
  launched.calls.push_back(std::make_shared<Call>(call));
  if (const std::string problem = resolve(*launched.calls.back(), communicator); !problem.empty()) {
    misuses.add(problem);
  }
  if (mine.depth > 0) return nccl::kSuccess;
  Launch whole = std::move(launched);
  mine.launches.erase(communicator);
  return launch(communicator, std::move(whole));
}

std::string FakeNccl::State::resolve(Call& call, Communicator communicator) {
  const auto caller = member(communicator, "reducing");
  const std::lock_guard lock(mutex);
  call.input_in_window = place_in_window(call.input);
  call.output_in_window = place_in_window(call.output);
  if (!caller || call.op < kAverage) return {};
  const bool is_floating = call.type >= kFloat16;
  const auto own = factors.find(call.op);
  if (call.op > kAverage && own == factors.end()) return "an operator that there is not";
  call.factor = call.op == kAverage ? 1.0 / caller->ranks->size : own->second;
  call.op = kSum;
  return is_floating ? "" : "integers that are scaled";
}

std::ptrdiff_t FakeNccl::State::place_in_window(const void* memory) const {
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (const auto& [handle, window] : windows) {
    const auto& [first, bytes] = window;
    if (begin >= first && begin < first + bytes) return begin - first;
  }
  return -1;
}

std::shared_ptr<Member> FakeNccl::State::member(Communicator communicator, const char* what) {
  const std::lock_guard lock(mutex);
  const auto found = members.find(communicator);
  if (found != members.end()) return found->second;
  misuses.add(std::string(what) + " on a communicator that has ended");
  return nullptr;
}

std::shared_ptr<Member> FakeNccl::State::caller(Communicator communicator, const char* what) {
  std::shared_ptr<Member> found = member(communicator, what);
  if (found && found->thread != std::this_thread::get_id()) {
    misuses.add(std::string(what) + " by another thread than the one that has connected");
  }
  return found;
}

Result FakeNccl::State::meet(Ranks& ranks, int rank, const std::string& what,
                             const Member* member) {
  std::unique_lock lock(mutex);
  const int ended = connecting_ended;
  std::set<int>& came = ranks.came[what];
  came.insert(rank);
  changed.notify_all();
  const auto fails = [&] {
    return broken != nccl::kSuccess ||
           (member != nullptr ? member->is_aborted.load() : connecting_ended != ended);
  };
  const auto is_complete = [&] {
    const bool lacks_one =
        lacks_a_rank_of && (*lacks_a_rank_of == 0 || *lacks_a_rank_of == ranks.size);
    const bool is_held = holds_calls && member != nullptr;
    return !lacks_one && !is_held && static_cast<int>(came.size()) == ranks.size;
  };
  changed.wait(lock, [&] { return fails() || is_complete(); });
  if (!fails()) return nccl::kSuccess;
  return broken != nccl::kSuccess ? broken : kSystemError;
}

Result FakeNccl::State::init(Communicator* communicator, int size, const UniqueId& id, int rank,
                             const CommunicatorConfig& config) {
  const int device = fake::current_device();
  std::shared_ptr<Ranks> ranks;
  {
    const std::lock_guard lock(mutex);
    if (config.blocking != 1) misuses.add("a communicator that does not block");
    auto& group = groups[std::string(id.bytes.data(), id.bytes.size())];
    if (!group) group = std::make_shared<Ranks>(size, misuses);
    ranks = group;
    ranks->device_of[rank] = device;
  }
  if (const Result met = meet(*ranks, rank, "connecting", nullptr); met != nccl::kSuccess) {
    return met;
  }
  const std::lock_guard lock(mutex);
  std::set<int> devices;
  for (const auto& [each, on] : ranks->device_of) devices.insert(on);
  if (static_cast<int>(devices.size()) < ranks->size) {
    misuses.add("two ranks on one GPU");
    return kInvalidUsage;
  }
  const auto made = std::make_shared<Member>();
  made->ranks = ranks;
  made->rank = rank;
  made->thread = std::this_thread::get_id();
  *communicator = reinterpret_cast<Communicator>(0x1000 + 16 * ++last_number);
  members[*communicator] = made;
  return nccl::kSuccess;
}

Result FakeNccl::State::look(Communicator communicator, Result* result) {
  if (!member(communicator, "looking")) return kInvalidArgument;
  const std::lock_guard lock(mutex);
  return *result = broken, nccl::kSuccess;
}

Result FakeNccl::State::launch(Communicator communicator, Launch launch) {
  const std::shared_ptr<Member> launcher = caller(communicator, "calling");
  if (!launcher) return kInvalidArgument;
  if (!std::exchange(launcher->has_called, true) || holds_calls) {
    const Result met = meet(*launcher->ranks, launcher->rank, "the first call", launcher.get());
    if (met != nccl::kSuccess) return met;
  }
  queue(launcher, std::move(launch));
  return nccl::kSuccess;
}

void FakeNccl::State::queue(const std::shared_ptr<Member>& member, Launch launch) {
  const auto has_begun = std::make_shared<bool>(false);
  const auto is_over = [member, calls = launch.calls, has_begun] {
    if (member->is_aborted) return true;
    if (member->is_broken) return false;
    for (const auto& call : calls) {
      if (!*has_begun) member->ranks->arrive(member->rank, call);
    }
    *has_begun = true;
    return std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call->is_done; });
  };
  if (cuda.queue(launch.stream, is_over) != cuda::kSuccess) misuses.add("a stream that has ended");
}

Result FakeNccl::State::finalize(Communicator communicator) {
  const std::shared_ptr<Member> finalizing = caller(communicator, "finalizing");
  if (!finalizing) return kInvalidArgument;
  finalizing->has_finalized = true;
  return meet(*finalizing->ranks, finalizing->rank, "finalizing", finalizing.get());
}

Result FakeNccl::State::end(Communicator communicator, bool aborts) {
  const std::shared_ptr<Member> ending = member(communicator, aborts ? "aborting" : "destroying");
  if (!ending) return kInvalidArgument;
  std::shared_future<void> until;
  {
    const std::lock_guard lock(mutex);
    if (aborts) until = aborts_return;
  }
  if (until.valid()) until.wait();
  if (aborts) {
    {
      const std::lock_guard lock(mutex);
      ending->is_aborted = true;
    }
    changed.notify_all();
    ending->ranks->is_torn = true;
    cuda.ask_again();
  }
  {
    const std::lock_guard lock(mutex);
    const auto is_left = [&](const auto& each) { return each.second == communicator; };
    if (std::erase_if(registrations, is_left) > 0 && !aborts) misuses.add("a registration is left");
    std::erase_if(windows, [&](const auto& each) { return !registrations.contains(each.first); });
    if (!aborts && !ending->has_finalized) misuses.add("destroyed, but not finalized");
    members.erase(communicator);
  }
  return nccl::kSuccess;
}

FakeNccl::FakeNccl(FakeCuda& cuda, const Options& options)
    : state_(std::make_unique<State>(cuda, options)) {
  State* none = nullptr;
  if (!the_one.compare_exchange_strong(none, state_.get())) {
    throw std::logic_error("there is a FakeNccl already");
  }
  Functions& functions = fake::current_state()->symbols;
  add_communicators(functions);
  add_calls(functions);
  add_operators(functions);
  add_memory(functions);
}

FakeNccl::~FakeNccl() {
  end_connecting();
  // An abort that nobody waits for may just be returning.
  while (state_->calls_in_progress > 0) std::this_thread::yield();
  the_one = nullptr;
}

vendor::SymbolLookup FakeNccl::lookup() const {
  Functions functions = fake::current_state()->symbols;
  for (const std::string& symbol : state_->options.lacks) functions.erase(symbol);
  return library_of(std::move(functions));
}

void FakeNccl::lose_a_rank(int ranks) {
  const std::lock_guard lock(state_->mutex);
  state_->lacks_a_rank_of = ranks;
}

void FakeNccl::end_connecting() {
  const std::lock_guard lock(state_->mutex);
  ++state_->connecting_ended;
  state_->changed.notify_all();
}

void FakeNccl::hold_calls() {
  const std::lock_guard lock(state_->mutex);
  state_->holds_calls = true;
}

void FakeNccl::break_down(Result result) {
  const std::lock_guard lock(state_->mutex);
  state_->broken = result;
  state_->changed.notify_all();
  for (const auto& [handle, member] : state_->members) member->is_broken = true;
}

void FakeNccl::hold_aborts(std::shared_future<void> until) {
  const std::lock_guard lock(state_->mutex);
  state_->aborts_return = std::move(until);
}

FakeNccl::Live FakeNccl::live() const {
  const std::lock_guard lock(state_->mutex);
  const auto count = [](const auto& items) { return static_cast<int>(items.size()); };
  return {count(state_->members), count(state_->registrations), count(state_->windows),
          count(state_->allocations), count(state_->factors)};
}

std::vector<std::string> FakeNccl::misuses() const {
  return state_->misuses.all();
}

}  // namespace ronde::test
