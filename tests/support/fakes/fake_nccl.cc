// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_nccl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {
namespace {

using namespace ronde::nccl;
using StreamHandle = cuda::StreamHandle;

enum class Kind { AllReduce, ReduceScatter, Broadcast, AllGather, Send, Recv };

constexpr std::array kTypes = {DataType::I8,  DataType::U8,  DataType::I32, DataType::U32,
                               DataType::I64, DataType::U64, DataType::F16, DataType::F32,
                               DataType::F64, DataType::BF16};

/// What ranks see of each other's calls.
struct Call {
  Kind kind = Kind::AllReduce;
  std::size_t count = 0;
  DataType type = DataType::U8;
  ReductionNumber op = kSum;
  int other = -1;       ///< the root, or the peer
  double factor = 1.0;  ///< of each rank's elements, in their type: that of kAverage
  /// Bytes from the beginning of a window; -1: in none.
  std::ptrdiff_t input_in_window = -1, output_in_window = -1;

  bool is_message() const { return kind == Kind::Send || kind == Kind::Recv; }
  bool fits(const Call& call) const {
    return kind == call.kind && count == call.count && type == call.type && op == call.op &&
           other == call.other && factor == call.factor;
  }
};

/// One that a rank makes. It is done once those of the others have been met.
struct OwnCall : Call {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int number = 0;  ///< among those of its rank that are alike
  bool is_done = false;
};

using Bytes = std::vector<std::byte>;

/// A call that a rank has come to, and its input.
struct Shown {
  Call call;
  Bytes input;
};

/// NaN gives way to a number, as on the GPU.
template <typename Number>
Number combined(Number a, Number b, ReductionNumber op) {
  if (op == kSum) return a + b;
  if (op == kProduct) return a * b;
  return std::isnan(static_cast<double>(a)) || (op == kMax ? a < b : b < a) ? b : a;
}

/// Combines two elements. Floats, also halves, are rounded to their type behind each operation,
/// which is the same as an operation in that type; integers wrap.
void combine(DataType type, ReductionNumber op, std::byte* result, const std::byte* other) {
  if (is_floating(type)) {
    const double number = combined(read_number(type, result), read_number(type, other), op);
    return write_number(type, result, number);
  }
  with_storage(type, [&](auto a) {
    auto b = a;
    std::memcpy(&a, result, sizeof a);
    std::memcpy(&b, other, sizeof b);
    const auto in = [&](auto wide) {
      using Wide = decltype(wide);
      return static_cast<decltype(a)>(combined(static_cast<Wide>(a), static_cast<Wide>(b), op));
    };
    a = op == kMin || op == kMax ? in(std::int64_t{}) : in(std::uint64_t{});
    std::memcpy(result, &a, sizeof a);
  });
}

/// `count` elements from `first` on of what all ranks bring.
Bytes reduced(const std::vector<const Shown*>& ranks, std::size_t first, std::size_t count) {
  const Call& call = ranks.front()->call;
  const std::size_t width = size_of(call.type);
  Bytes scale(width), result(count * width), next(width);
  write_number(call.type, scale.data(), call.factor);
  const auto bring = [&](std::size_t rank, std::size_t i, std::byte* to) {
    std::memcpy(to, ranks[rank]->input.data() + i * width, width);
    if (call.factor != 1.0) combine(call.type, kProduct, to, scale.data());
  };
  for (std::size_t i = 0; i < count; ++i) {
    // A ring begins somewhere else for each part.
    const std::size_t begin = (first + i + 1) % ranks.size();
    bring(begin, first + i, result.data() + i * width);
    for (std::size_t k = 1; k < ranks.size(); ++k) {
      bring((begin + k) % ranks.size(), first + i, next.data());
      combine(call.type, call.op, result.data() + i * width, next.data());
    }
  }
  return result;
}

/// What ranks show each other, by names: ranks that are processes by files in a folder.
///
/// Thread-safety: full.
class Board {
 public:
  explicit Board(std::filesystem::path folder) : folder_(std::move(folder)) {
    if (is_of_processes()) std::filesystem::create_directories(folder_);
  }

  bool is_of_processes() const { return !folder_.empty(); }

  const Shown& put(const std::string& name, Shown shown = {}) {
    const fake::Hidden hidden;
    const std::lock_guard lock(mutex_);
    if (is_of_processes()) {
      // Nobody sees it half written.
      const std::filesystem::path beside = folder_ / (name + ".new");
      std::ofstream(beside, std::ios::binary)
          .write(reinterpret_cast<const char*>(&shown.call), sizeof shown.call)
          .write(reinterpret_cast<const char*>(shown.input.data()),
                 static_cast<std::streamsize>(shown.input.size()));
      std::filesystem::rename(beside, folder_ / name);
    }
    return shown_[name] = std::move(shown);
  }

  /// Null: it is not there yet.
  const Shown* find(const std::string& name) {
    const fake::Hidden hidden;
    const std::lock_guard lock(mutex_);
    const auto found = shown_.find(name);
    if (found != shown_.end()) return &found->second;
    if (!is_of_processes() || !std::filesystem::exists(folder_ / name)) return nullptr;
    Shown& shown = shown_[name];
    shown.input.resize(std::filesystem::file_size(folder_ / name) - sizeof shown.call);
    std::ifstream(folder_ / name, std::ios::binary)
        .read(reinterpret_cast<char*>(&shown.call), sizeof shown.call)
        .read(reinterpret_cast<char*>(shown.input.data()),
              static_cast<std::streamsize>(shown.input.size()));
    return &shown;
  }

 private:
  const std::filesystem::path folder_;
  std::mutex mutex_;
  std::map<std::string, Shown> shown_;  ///< guarded by mutex_
};

struct Misuses {
  void add(const std::string& text) {
    const std::lock_guard lock(mutex);
    texts.push_back(text);
  }

  std::mutex mutex;
  std::vector<std::string> texts;  ///< guarded by mutex
};

/// The ranks that were given one unique id. Their calls meet here, under the lock of the streams.
struct Ranks {
  Ranks(int how_many, Misuses& where, const std::filesystem::path& folder)
      : size(how_many), misuses(where), board(folder) {}

  static std::string name_of(const Call& call, int number, int rank) {
    std::string kind = "collective";
    if (call.kind == Kind::Send) kind = "send to " + std::to_string(call.other);
    if (call.kind == Kind::Recv) kind = "recv from " + std::to_string(call.other);
    return kind + " of " + std::to_string(rank) + " " + std::to_string(number);
  }

  Bytes input_of(const OwnCall& call, int rank) const {
    const bool brings = call.kind == Kind::Broadcast ? call.other == rank : call.kind != Kind::Recv;
    const int parts = call.kind == Kind::ReduceScatter ? size : brings ? 1 : 0;
    const auto bytes = static_cast<std::size_t>(parts) * call.count * size_of(call.type);
    return bytes > 0 ? Bytes(call.input, call.input + bytes) : Bytes();
  }

  /// The stream of `rank` has come to the call.
  void arrive(int rank, OwnCall& call) {
    if (is_torn) return;
    fake::release(&board.put(name_of(call, call.number, rank), {call, input_of(call, rank)}));
  }

  /// Ends the call if those of all its ranks are there; returns whether it has ended.
  bool finish(int rank, OwnCall& call) {
    if (call.is_done || is_torn) return call.is_done;
    std::vector<const Shown*> all;
    Call others = call;
    if (call.is_message()) {
      others.kind = call.kind == Kind::Send ? Kind::Recv : Kind::Send;
      others.other = rank;
    }
    for (int from = 0; from < size; ++from) {
      if (call.is_message() && from != call.other) continue;
      all.push_back(board.find(name_of(others, call.number, from)));
      if (all.back() == nullptr) return false;
    }
    for (const Shown* each : all) fake::acquire(each);
    if (input_of(call, rank) != board.find(name_of(call, call.number, rank))->input) {
      misuses.add("an input that changes before its call has ended");
    }
    // NCCL chooses a kernel by the windows that a rank's own memory is in.
    if (!call.is_message() && std::ranges::any_of(all, [&](const Shown* each) {
          return each->call.input_in_window != call.input_in_window ||
                 each->call.output_in_window != call.output_in_window;
        })) {
      misuses.add("buffers are not at the same place of every rank's window");
    }
    call.is_done = true;
    if (!std::ranges::all_of(all, [&](const Shown* each) { return others.fits(each->call); })) {
      misuses.add("the ranks' calls do not fit each other");
    } else if (const Bytes result = result_of(rank, call, all); !result.empty()) {
      std::memcpy(call.output, result.data(), result.size());
    }
    return true;
  }

  static Bytes result_of(int rank, const Call& call, const std::vector<const Shown*>& all) {
    const auto own = static_cast<std::size_t>(rank);
    if (call.kind == Kind::AllReduce) return reduced(all, 0, call.count);
    if (call.kind == Kind::ReduceScatter) return reduced(all, own * call.count, call.count);
    if (call.kind == Kind::Broadcast) return all[static_cast<std::size_t>(call.other)]->input;
    Bytes gathered;
    for (const Shown* each : all) {
      gathered.insert(gathered.end(), each->input.begin(), each->input.end());
    }
    return gathered;
  }

  const int size;
  Misuses& misuses;
  Board board;
  std::set<int> devices;  ///< of those that have come; under FakeNccl's lock
  /// A rank has aborted: nothing that the others do with it ends any more.
  std::atomic<bool> is_torn{false};
};

struct Launch {
  std::vector<OwnCall> calls;
  StreamHandle stream = nullptr;
};

struct Member {
  std::shared_ptr<Ranks> ranks;
  int rank = 0;
  std::set<std::string> connected;     ///< with whom, by the first calls
  std::map<std::string, int> numbers;  ///< of the calls so far that are alike
  std::atomic<bool> is_aborted{false};
  std::atomic<bool> is_broken{false};
};

/// What the calling thread has called between ncclGroupStart and ncclGroupEnd.
struct CallsOfThread {
  int depth = 0;
  std::map<Communicator, Launch> launches;
};
thread_local CallsOfThread calls_of_thread;

}  // namespace

struct FakeNccl::State {
  State(FakeCuda& the_cuda, const Options& the_options)
      : cuda(the_cuda), options(the_options), driver(cuda::load_driver(the_cuda.lookup()).api) {}

  /// Adds a call to the group of the calling thread, or launches it.
  Result take(const Call& call, const void* input, void* output, Communicator communicator,
              StreamHandle stream) {
    Launch& launched = calls_of_thread.launches[communicator];
    launched.stream = stream;
    launched.calls.push_back(
        {call, static_cast<const std::byte*>(input), static_cast<std::byte*>(output)});
    resolve(launched.calls.back(), communicator);
    return calls_of_thread.depth > 0 ? nccl::kSuccess : launch_all();
  }

  /// What the calling thread has called.
  Result launch_all() {
    Result result = nccl::kSuccess;
    for (auto& [communicator, all] : std::exchange(calls_of_thread.launches, {})) {
      result = launch(communicator, std::move(all));
    }
    return result;
  }

  /// Averages are sums of scaled elements.
  void resolve(OwnCall& call, Communicator communicator) {
    const auto caller = member(communicator, "reducing");
    const std::lock_guard lock(mutex);
    for (const auto& [handle, window] : windows) {
      const auto place = [&, first = window.begin, bytes = window.bytes](const std::byte* memory) {
        const std::ptrdiff_t offset = memory - first;
        return offset >= 0 && offset < static_cast<std::ptrdiff_t>(bytes) ? offset : -1;
      };
      call.input_in_window = std::max(call.input_in_window, place(call.input));
      call.output_in_window = std::max(call.output_in_window, place(call.output));
    }
    if (!caller) return;
    call.number = caller->numbers[Ranks::name_of(call, 0, caller->rank)]++;
    if (call.op != kAverage) return;
    if (!is_floating(call.type)) misuses.add("integers that are averaged");
    call.factor = 1.0 / caller->ranks->size;
    call.op = kSum;
  }

  /// Null: it is misused.
  std::shared_ptr<Member> member(Communicator communicator, const char* what) {
    const std::lock_guard lock(mutex);
    const auto found = members.find(communicator);
    // Without one, NCCL makes one on the first GPU.
    const bool needs_context = std::string_view(what) != "looking";
    if (needs_context && fake::contexts.empty()) misuses.add(std::string(what) + " has no context");
    if (found != members.end()) return found->second;
    misuses.add(std::string(what) + " on a communicator that has ended");
    return nullptr;
  }

  /// Blocks until all ranks, or `count`, have come to `what`, or what blocks is ended. `member`:
  /// none while it connects, which no abort ends.
  Result meet(Ranks& ranks, int rank, const std::string& what, const Member* member,
              int count = 0) {
    std::unique_lock lock(mutex);
    const int ended = connecting_ended;
    const auto name = [&](int who) { return what + "." + std::to_string(who); };
    ranks.board.put(name(rank));
    changed.notify_all();
    const auto fails = [&] {
      return broken != nccl::kSuccess ||
             (member != nullptr ? member->is_aborted.load() : connecting_ended != ended);
    };
    const auto is_complete = [&] {
      int came = 0;
      for (int who = 0; who < ranks.size; ++who) came += ranks.board.find(name(who)) ? 1 : 0;
      return !lacks_a_rank && came == (count > 0 ? count : ranks.size);
    };
    while (!fails() && !is_complete()) {
      if (!ranks.board.is_of_processes()) changed.wait(lock);
      if (ranks.board.is_of_processes()) changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (!fails()) return nccl::kSuccess;
    return broken != nccl::kSuccess ? broken : kSystemError;
  }

  /// All ranks connect for their first collective, and two for their first message.
  Result connect_for(const Launch& launch, Member& member) {
    std::map<std::string, int> needed;  // sorted, so that ranks connect in one order
    for (const auto& call : launch.calls) {
      const auto [low, high] = std::minmax(member.rank, call.other);
      const std::string pair = std::to_string(low) + " and " + std::to_string(high);
      needed.emplace(call.is_message() ? pair : "collectives", !call.is_message() ? 0
                                                               : low == high      ? 1
                                                                                  : 2);
    }
    for (const auto& [with, count] : needed) {
      if (!member.connected.insert(with).second && !lacks_a_rank) continue;
      const Result met = meet(*member.ranks, member.rank, with, &member, count);
      if (met != nccl::kSuccess) return met;
    }
    return nccl::kSuccess;
  }

  Result init(Communicator* communicator, int size, const UniqueId& id, int rank,
              const CommunicatorConfig& config) {
    std::shared_ptr<Ranks> ranks;
    {
      const std::lock_guard lock(mutex);
      if (config.blocking != 1) misuses.add("a communicator that does not block");
      const bool may_share = options.ranks_share_gpus && options.version >= kOldestWithSharedGpus;
      const bool by_files = size > 1 && !options.meeting_place.empty();
      auto& group = groups[std::string(id.bytes.data(), id.bytes.size())];
      if (!group) {
        const auto folder = std::filesystem::path(options.meeting_place) /
                            ("fake_nccl." + std::string(id.bytes.data()));
        group = std::make_shared<Ranks>(size, misuses, by_files ? folder : "");
      }
      ranks = group;
      const bool is_alone = ranks->devices.insert(fake::current_device()).second;
      // Processes are all on one.
      if (!may_share && (by_files || !is_alone)) {
        misuses.add("two ranks on one GPU");
        return kInvalidUsage;
      }
    }
    const Result met = meet(*ranks, rank, "connecting", nullptr);
    if (met != nccl::kSuccess) return met;
    const std::lock_guard lock(mutex);
    const auto made = std::make_shared<Member>();
    made->ranks = ranks;
    made->rank = rank;
    *communicator = reinterpret_cast<Communicator>(0x1000 + 16 * ++last_number);
    members[*communicator] = made;
    return nccl::kSuccess;
  }

  /// Of one call, or of a group of them.
  Result launch(Communicator communicator, Launch launch) {
    const std::shared_ptr<Member> launcher = member(communicator, "calling");
    if (!launcher) return kInvalidArgument;
    if (const Result met = connect_for(launch, *launcher); met != nccl::kSuccess) return met;
    const auto is_over = [launcher, calls = std::move(launch.calls), has_begun = false]() mutable {
      if (launcher->is_aborted) return true;
      if (launcher->is_broken) return false;
      for (OwnCall& call : calls) {
        if (!has_begun) launcher->ranks->arrive(launcher->rank, call);
      }
      has_begun = true;
      bool all = true;
      for (OwnCall& call : calls) all = launcher->ranks->finish(launcher->rank, call) && all;
      return all;
    };
    const bool is_queued = cuda.queue(launch.stream, is_over) == cuda::kSuccess;
    if (!is_queued) misuses.add("a stream that has ended");
    return nccl::kSuccess;
  }

  Result end(Communicator communicator, bool aborts) {
    const std::shared_ptr<Member> ending = member(communicator, aborts ? "aborting" : "destroying");
    if (!ending) return kInvalidArgument;
    std::unique_lock lock(mutex);
    if (const std::shared_future<void> until = aborts_return; aborts && until.valid()) {
      lock.unlock();
      until.wait();
      lock.lock();
    }
    ending->is_aborted = aborts;
    const auto is_left = [&](const auto& each) { return each.second.communicator == communicator; };
    if (std::erase_if(windows, is_left) > 0 && !aborts) misuses.add("a window is left");
    members.erase(communicator);
    lock.unlock();
    if (!aborts) return nccl::kSuccess;
    changed.notify_all();
    ending->ranks->is_torn = true;
    cuda.ask_again();
    return nccl::kSuccess;
  }

  FakeCuda& cuda;
  const Options options;
  const std::shared_ptr<const cuda::DriverApi> driver;  ///< null: there is none that is good enough
  Misuses misuses;
  mutable std::mutex mutex;
  std::map<std::string, std::shared_ptr<Ranks>> groups;  ///< by their ids
  std::map<Communicator, std::shared_ptr<Member>> members;
  struct Memory {
    Communicator communicator;
    const std::byte* begin;
    std::size_t bytes;
  };
  std::map<void*, Memory> windows;  ///< by handle
  std::set<void*> allocations;
  Result broken = nccl::kSuccess;
  std::atomic<bool> lacks_a_rank{false};
  std::shared_future<void> aborts_return;
  int connecting_ended = 0;         ///< so often
  std::condition_variable changed;  ///< anything of these, of members, and of who has come
  std::uint64_t last_number = 0;
  std::atomic<int> calls_in_progress{0};
};

namespace {

std::atomic<FakeNccl::State*> the_one{nullptr};

/// Enters a function of the library, which FakeCuda counts and fails like its own.
struct EnterNccl {
  template <typename Body>
  Result operator()(const char* symbol, Body body) const {
    const fake::Hidden hidden;
    FakeNccl::State& s = *the_one.load();
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
    // Unique also among processes.
    const std::string number = std::to_string(getpid()) + "." + std::to_string(++s.last_number);
    std::memcpy(id->bytes.data(), number.data(), number.size());
    return nccl::kSuccess;
  });
  define<"ncclCommInitRankConfig">(
      functions,
      [](S& s, Communicator* communicator, int size, UniqueId id, int rank,
         CommunicatorConfig* config) { return s.init(communicator, size, id, rank, *config); });
  define<"ncclCommGetAsyncError">(functions, [](S& s, Communicator communicator, Result* result) {
    if (!s.member(communicator, "looking")) return kInvalidArgument;
    const std::lock_guard lock(s.mutex);
    return *result = s.broken, nccl::kSuccess;
  });
  define<"ncclCommFinalize">(functions, [](S& s, Communicator communicator) {
    const auto caller = s.member(communicator, "finalizing");
    if (!caller) return kInvalidArgument;
    return s.meet(*caller->ranks, caller->rank, "finalizing", caller.get());
  });
  define<"ncclCommDestroy">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, false); });
  define<"ncclCommAbort">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, true); });
}

Call call_of(Kind kind, std::size_t count, DataTypeNumber type, ReductionNumber op = kSum,
             int other = -1) {
  return {kind, count, kTypes.at(static_cast<std::size_t>(type)), op, other};
}

template <Kind kKind>
constexpr auto kReduce = [](S& s, const void* input, void* output, std::size_t count,
                            DataTypeNumber type, ReductionNumber op, Communicator communicator,
                            StreamHandle stream) {
  return s.take(call_of(kKind, count, type, op), input, output, communicator, stream);
};

void add_calls(Functions& functions) {
  define<"ncclGroupStart">(functions, [](S&) { return ++calls_of_thread.depth, nccl::kSuccess; });
  define<"ncclGroupEnd">(functions, [](S& s) {
    return --calls_of_thread.depth > 0 ? nccl::kSuccess : s.launch_all();
  });
  define<"ncclAllReduce">(functions, kReduce<Kind::AllReduce>);
  define<"ncclReduceScatter">(functions, kReduce<Kind::ReduceScatter>);
  define<"ncclBroadcast">(
      functions, [](S& s, const void* input, void* output, std::size_t count, DataTypeNumber type,
                    int root, Communicator communicator, StreamHandle stream) {
        return s.take(call_of(Kind::Broadcast, count, type, kSum, root), input, output,
                      communicator, stream);
      });
  define<"ncclAllGather">(
      functions, [](S& s, const void* input, void* output, std::size_t count, DataTypeNumber type,
                    Communicator communicator, StreamHandle stream) {
        return s.take(call_of(Kind::AllGather, count, type), input, output, communicator, stream);
      });
  define<"ncclSend">(functions, [](S& s, const void* input, std::size_t count, DataTypeNumber type,
                                   int peer, Communicator communicator, StreamHandle stream) {
    return s.take(call_of(Kind::Send, count, type, kSum, peer), input, nullptr, communicator,
                  stream);
  });
  define<"ncclRecv">(functions, [](S& s, void* output, std::size_t count, DataTypeNumber type,
                                   int peer, Communicator communicator, StreamHandle stream) {
    return s.take(call_of(Kind::Recv, count, type, kSum, peer), nullptr, output, communicator,
                  stream);
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
  define<"ncclCommWindowRegister">(functions, [](S& s, Communicator communicator, void* memory,
                                                 std::size_t bytes, Window* window, int flags) {
    const auto caller = s.member(communicator, "registering a window");
    if (!caller || flags != kSymmetricWindow) return kInvalidArgument;
    // All ranks bring as much.
    const std::string what = "a window of " + std::to_string(bytes);
    const Result met = s.meet(*caller->ranks, caller->rank, what, caller.get());
    if (met != nccl::kSuccess || !s.options.makes_windows) return met;
    const std::lock_guard lock(s.mutex);
    if (s.allocations.count(memory) == 0) s.misuses.add("a window of memory that is not NCCL's");
    *window = reinterpret_cast<Window>(++s.last_number);
    s.windows[*window] = {communicator, static_cast<const std::byte*>(memory), bytes};
    return nccl::kSuccess;
  });
  define<"ncclCommWindowDeregister">(functions, [](S& s, Communicator communicator, Window window) {
    if (!s.member(communicator, "deregistering a window")) return kInvalidArgument;
    const std::lock_guard lock(s.mutex);
    return s.windows.erase(window) == 1 ? nccl::kSuccess : kInvalidArgument;
  });
}

}  // namespace

FakeNccl::FakeNccl(FakeCuda& cuda, const Options& options)
    : state_(std::make_unique<State>(cuda, options)) {
  State* none = nullptr;
  if (!the_one.compare_exchange_strong(none, state_.get())) {
    throw std::logic_error("there is a FakeNccl already");
  }
  Functions& functions = fake::current_state.load()->symbols;
  add_communicators(functions);
  add_calls(functions);
  add_memory(functions);
}

FakeNccl::~FakeNccl() {
  end_connecting();
  // An abort that nobody waits for may just be returning.
  while (state_->calls_in_progress > 0) std::this_thread::yield();
  the_one = nullptr;
  const fake::Hidden hidden;
  state_.reset();
}

vendor::SymbolLookup FakeNccl::lookup() const {
  Functions functions = fake::current_state.load()->symbols;
  for (const std::string& symbol : state_->options.lacks) functions.erase(symbol);
  return library_of(std::move(functions));
}

void FakeNccl::lose_a_rank() {
  state_->lacks_a_rank = true;
}

void FakeNccl::end_connecting() {
  const std::lock_guard lock(state_->mutex);
  ++state_->connecting_ended;
  state_->changed.notify_all();
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
  return {count(state_->members), count(state_->windows), count(state_->allocations)};
}

std::vector<std::string> FakeNccl::misuses() const {
  const std::lock_guard lock(state_->misuses.mutex);
  return state_->misuses.texts;
}

}  // namespace ronde::test
