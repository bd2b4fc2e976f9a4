// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_nccl.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "tests/support/fakes/fake_cuda_state.h"
#include "tests/support/half.h"

namespace ronde::test {
namespace {

using namespace ronde::nccl;
using StreamHandle = cuda::StreamHandle;

enum class Kind { AllReduce, ReduceScatter, Broadcast, AllGather, Send, Recv };

/// One call of one rank. It is done once it has met those of the others.
struct Call {
  Kind kind = Kind::AllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataTypeNumber type = kUint8;
  ReductionNumber op = kSum;
  int other = -1;       ///< the root, or the peer
  double factor = 1.0;  ///< of each rank's elements, in their type: that of kAverage
  /// Bytes from the beginning of a window; -1: in none.
  std::ptrdiff_t input_in_window = -1, output_in_window = -1;
  bool is_done = false;  ///< atomic
  int number = 0;        ///< among those of its ranks, for processes

  bool is_message() const { return kind == Kind::Send || kind == Kind::Recv; }
};
using Calls = std::vector<std::shared_ptr<Call>>;

struct F16 {
  std::uint16_t bits;
  operator float() const { return f16_to_f32(bits); }
  static F16 of(float value) { return {f32_to_f16(value)}; }
};
struct Bf16 {
  std::uint16_t bits;
  operator float() const { return bf16_to_f32(bits); }
  static Bf16 of(float value) { return {f32_to_bf16(value)}; }
};

template <typename Number>
Number combined(Number a, Number b, ReductionNumber op) {
  if constexpr (std::is_class_v<Number>) {
    return Number::of(combined<float>(a, b, op));
  } else {
    using Wide = std::conditional_t<std::is_floating_point_v<Number>, Number, std::uint64_t>;
    const auto x = static_cast<Wide>(a);
    const auto y = static_cast<Wide>(b);
    if (op == kSum) return static_cast<Number>(x + y);
    if (op == kProduct) return static_cast<Number>(x * y);
    // As on the GPU, the number is taken where the other one is NaN.
    if constexpr (std::is_floating_point_v<Number>) {
      if (std::isnan(a)) return b;
    }
    return (op == kMax ? a < b : b < a) ? b : a;
  }
}

/// Both are of the type, and so is the result.
template <typename Number>
Number scaled(Number value, double factor) {
  if constexpr (std::is_class_v<Number>) {
    return Number::of(value * static_cast<float>(Number::of(static_cast<float>(factor))));
  } else {
    return static_cast<Number>(value * static_cast<Number>(factor));
  }
}

/// Calls `visit` with a zero of the type.
template <typename Visit>
void with_type(DataTypeNumber type, Visit visit) {
  if (type == kInt8) visit(std::int8_t{});
  if (type == kUint8) visit(std::uint8_t{});
  if (type == kInt32) visit(std::int32_t{});
  if (type == kInt64) visit(std::int64_t{});
  if (type == kFloat16) visit(F16{});
  if (type == kBfloat16) visit(Bf16{});
  if (type == kFloat32) visit(float{});
  if (type == kFloat64) visit(double{});
}

std::size_t width_of(DataTypeNumber type) {
  std::size_t width = 0;
  with_type(type, [&](auto zero) { width = sizeof zero; });
  return width;
}

/// `count` elements from `first` on of what all ranks bring, as bytes.
std::vector<char> reduced(const Calls& calls, std::size_t first, std::size_t count) {
  const Call& any = *calls.front();
  std::vector<char> result(count * width_of(any.type));
  with_type(any.type, [&](auto zero) {
    using Number = decltype(zero);
    const auto bring = [&](std::size_t rank, std::size_t i) {
      Number value;
      std::memcpy(&value, static_cast<const char*>(calls[rank]->input) + i * sizeof value,
                  sizeof value);
      return any.factor != 1.0 ? scaled(value, any.factor) : value;
    };
    for (std::size_t i = 0; i < count; ++i) {
      // A ring begins somewhere else for each part.
      const std::size_t begin = (first + i + 1) % calls.size();
      Number value = bring(begin, first + i);
      for (std::size_t k = 1; k < calls.size(); ++k) {
        value = combined(value, bring((begin + k) % calls.size(), first + i), any.op);
      }
      std::memcpy(result.data() + i * sizeof value, &value, sizeof value);
    }
  });
  return result;
}

void put(const std::vector<char>& bytes, void* output) {
  if (!bytes.empty() && output != nullptr) std::memcpy(output, bytes.data(), bytes.size());
}

std::vector<char> taken(const Call& call) {
  const auto* const input = static_cast<const char*>(call.input);
  return std::vector<char>(input, input + call.count * width_of(call.type));
}

/// What ranks that are processes bring, by names of files.
struct Files {
  std::filesystem::path folder;  ///< empty: ranks are threads

  bool has(const std::string& name) const { return std::filesystem::exists(folder / name); }
  /// Nobody sees it half written.
  void write(const std::string& name, const std::vector<char>& bytes) const {
    const std::filesystem::path beside = folder / (name + ".new");
    std::ofstream(beside, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::rename(beside, folder / name);
  }
  std::vector<char> read(const std::string& name) const {
    std::ifstream file(folder / name, std::ios::binary);
    return std::vector<char>(std::istreambuf_iterator<char>(file), {});
  }
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
      : size(how_many), misuses(where), files{folder} {
    if (!folder.empty()) std::filesystem::create_directories(folder);
  }

  static bool fit(const Call& a, const Call& b) {
    return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
           a.other == b.other && a.factor == b.factor;
  }

  /// Moves and reduces for all ranks, whose calls these are in their order.
  void run_collective(const Calls& calls) {
    const Call& first = *calls.front();
    if (!std::all_of(calls.begin(), calls.end(),
                     [&](const auto& call) { return fit(first, *call); })) {
      return misuses.add("the ranks' calls do not fit each other");
    }
    // NCCL chooses a kernel by the windows that a rank's own memory is in.
    if (!std::all_of(calls.begin(), calls.end(), [&](const auto& call) {
          return call->input_in_window == first.input_in_window &&
                 call->output_in_window == first.output_in_window;
        })) {
      misuses.add("buffers are not at the same place of every rank's window");
    }
    // All is read before anything is written: some of it may be in place.
    std::vector<std::vector<char>> results(calls.size());
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      if (first.kind == Kind::ReduceScatter) {
        results[rank] = reduced(calls, rank * first.count, first.count);
      } else if (first.kind == Kind::Broadcast) {
        results[rank] = taken(*calls[static_cast<std::size_t>(first.other)]);
      } else if (first.kind == Kind::AllReduce) {
        results[rank] = reduced(calls, 0, first.count);
      }
      for (std::size_t i = 0; first.kind == Kind::AllGather && i < calls.size(); ++i) {
        const std::vector<char> more = taken(*calls[i]);
        results[rank].insert(results[rank].end(), more.begin(), more.end());
      }
    }
    for (std::size_t rank = 0; rank < calls.size(); ++rank) put(results[rank], calls[rank]->output);
  }

  void move(const Call& sent, const Call& received) {
    const bool fits = sent.count == received.count && sent.type == received.type;
    if (!fits) return misuses.add("a send and its receive do not fit each other");
    put(taken(sent), received.output);
  }

  /// The stream of `rank` has come to the call: moves the data if it is the last one.
  void arrive(int rank, const std::shared_ptr<Call>& call) {
    if (is_torn) return;
    if (!files.folder.empty()) return publish(rank, *call);
    fake::release(call.get());
    const Calls together = meet(rank, call);
    for (const auto& each : together) fake::acquire(each.get());
    if (call->is_message() && !together.empty()) {
      move(*together.front(), *together.back());
    } else if (!together.empty()) {
      run_collective(together);
    }
    for (const auto& each : together) std::atomic_ref(each->is_done) = true;
  }

  /// The calls of all ranks that belong to this one; empty while some are missing.
  Calls meet(int rank, const std::shared_ptr<Call>& call) {
    const fake::Hidden hidden;
    if (call->is_message()) {
      const bool is_sent = call->kind == Kind::Send;
      auto& queue = messages[is_sent ? std::pair(rank, call->other) : std::pair(call->other, rank)];
      if (queue.empty() || queue.front()->kind == call->kind) return queue.push_back(call), Calls{};
      const std::shared_ptr<Call> other = queue.front();
      queue.pop_front();
      return is_sent ? Calls{call, other} : Calls{other, call};
    }
    collectives[rank].push_back(call);
    const auto is_empty = [](const auto& each) { return each.second.empty(); };
    if (static_cast<int>(collectives.size()) < size || std::ranges::any_of(collectives, is_empty)) {
      return {};
    }
    Calls all;
    for (auto& [other, queue] : collectives) {
      all.push_back(queue.front());
      queue.pop_front();
    }
    return all;
  }

  /// The file of what `rank` brings to the call: to all, or to the rank `to`.
  static std::string name_of(const Call& call, int rank, int to) {
    return std::to_string(call.number) + " of " + std::to_string(rank) +
           (call.is_message() ? " to " + std::to_string(to) : "");
  }

  /// The stream of `rank`, a process of its own, has come to the call.
  void publish(int rank, Call& call) {
    call.number = numbers[call.is_message() ? std::pair(call.kind, call.other) : kCollective]++;
    call.is_done = call.kind == Kind::Send;
    if (call.kind == Kind::Recv) return;
    const bool brings = call.kind != Kind::Broadcast || call.other == rank;
    const int parts = call.kind == Kind::ReduceScatter ? size : brings ? 1 : 0;
    const auto bytes = static_cast<std::size_t>(parts) * call.count * width_of(call.type);
    std::vector<char> text(sizeof call + bytes);
    std::memcpy(text.data(), static_cast<const void*>(&call), sizeof call);
    if (bytes > 0) std::memcpy(text.data() + sizeof call, call.input, bytes);
    files.write(name_of(call, rank, call.other), text);
  }

  /// Ends one of processes once what the others bring is there.
  void finish(int rank, const std::shared_ptr<Call>& call) {
    if (files.folder.empty() || call->is_done) return;
    std::vector<std::vector<char>> texts;
    const auto sources =
        call->is_message() ? std::pair(call->other, call->other + 1) : std::pair(0, size);
    for (int from = sources.first; from < sources.second; ++from) {
      const std::string name = name_of(*call, from, rank);
      if (!files.has(name)) return;
      texts.push_back(files.read(name));
    }
    Calls calls;
    for (std::vector<char>& text : texts) {
      Call& theirs = *calls.emplace_back(std::make_shared<Call>());
      std::memcpy(static_cast<void*>(&theirs), text.data(), sizeof theirs);
      theirs.input = text.data() + sizeof theirs;
      theirs.output = nullptr;
    }
    if (call->is_message()) {
      const bool fits = calls[0]->count == call->count && calls[0]->type == call->type;
      if (fits) put(taken(*calls[0]), call->output);
      if (!fits) misuses.add("a send and its receive do not fit each other");
    } else {
      calls[static_cast<std::size_t>(rank)] = call;
      run_collective(calls);
    }
    call->is_done = true;
  }

  const int size;
  Misuses& misuses;
  const Files files;
  /// Counts the calls so far of ranks that are processes, messages by peer.
  std::map<std::pair<Kind, int>, int> numbers;
  static constexpr std::pair kCollective = {Kind::AllReduce, -1};
  std::set<int> devices;                      ///< of those that have come; under FakeNccl's lock
  std::map<std::string, std::set<int>> came;  ///< the same: the ranks that have called it
  /// A rank has aborted: nothing that the others do with it ends any more.
  std::atomic<bool> is_torn{false};
  // Calls that wait for those of other ranks.
  std::map<int, std::deque<std::shared_ptr<Call>>> collectives;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Call>>> messages;
};

struct Launch {
  Calls calls;
  StreamHandle stream = nullptr;
};

struct Member {
  std::shared_ptr<Ranks> ranks;
  int rank = 0;
  std::set<std::string> connected;  ///< with whom, by the first calls
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
  Result take(const Call& call, Communicator communicator, StreamHandle stream) {
    CallsOfThread& mine = calls_of_thread;
    Launch& launched = mine.launches[communicator];
    launched.stream = stream;
    launched.calls.push_back(std::make_shared<Call>(call));
    resolve(*launched.calls.back(), communicator);
    if (mine.depth > 0) return nccl::kSuccess;
    Launch whole = std::move(launched);
    mine.launches.erase(communicator);
    return launch(communicator, std::move(whole));
  }

  /// Averages are sums of scaled elements.
  void resolve(Call& call, Communicator communicator) {
    const auto caller = member(communicator, "reducing");
    const std::lock_guard lock(mutex);
    for (const auto& [handle, window] : windows) {
      const auto place = [&, first = window.begin, bytes = window.bytes](const void* memory) {
        const std::ptrdiff_t offset = static_cast<const std::byte*>(memory) - first;
        return offset >= 0 && offset < static_cast<std::ptrdiff_t>(bytes) ? offset : -1;
      };
      call.input_in_window = std::max(call.input_in_window, place(call.input));
      call.output_in_window = std::max(call.output_in_window, place(call.output));
    }
    if (!caller || call.op != kAverage) return;
    if (call.type < kFloat16) misuses.add("integers that are averaged");
    call.factor = 1.0 / caller->ranks->size;
    call.op = kSum;
  }

  /// Null: it is misused.
  std::shared_ptr<Member> member(Communicator communicator, const char* what) {
    const std::lock_guard lock(mutex);
    const auto found = members.find(communicator);
    // Without one, NCCL makes one on the first GPU.
    const bool needs_context = std::string_view(what) != "looking";
    if (needs_context && fake::contexts().empty())
      misuses.add(std::string(what) + " has no context");
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
    std::set<int>& came = ranks.came[what];
    came.insert(rank);
    changed.notify_all();
    const auto fails = [&] {
      return broken != nccl::kSuccess ||
             (member != nullptr ? member->is_aborted.load() : connecting_ended != ended);
    };
    const int needed = count > 0 ? count : ranks.size;
    const auto is_complete = [&] {
      return !lacks_a_rank && static_cast<int>(came.size()) == needed;
    };
    if (!ranks.files.folder.empty()) ranks.files.write(what + "." + std::to_string(rank), {});
    while (!ranks.files.folder.empty() && !fails() && !is_complete()) {
      for (int other = 0; other < ranks.size; ++other) {
        if (ranks.files.has(what + "." + std::to_string(other))) came.insert(other);
      }
      changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    changed.wait(lock, [&] { return fails() || is_complete(); });
    if (!fails()) return nccl::kSuccess;
    return broken != nccl::kSuccess ? broken : kSystemError;
  }

  /// All ranks connect for their first collective, and two for their first message.
  Result connect_for(const Launch& launch, Member& member) {
    std::map<std::string, int> needed;  // sorted, so that ranks connect in one order
    for (const auto& call : launch.calls) {
      const auto [low, high] = std::minmax(member.rank, call->other);
      const std::string pair = std::to_string(low) + " and " + std::to_string(high);
      needed.emplace(call->is_message() ? pair : "collectives", !call->is_message() ? 0
                                                                : low == high       ? 1
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
      if (!may_share && !is_alone) misuses.add("two ranks on one GPU");
      if (!may_share && by_files) return kInvalidUsage;  // all of them are on one
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
    const auto has_begun = std::make_shared<bool>(false);
    const auto is_over = [launcher, calls = launch.calls, has_begun] {
      if (launcher->is_aborted) return true;
      if (launcher->is_broken) return false;
      for (const auto& call : calls) {
        if (!*has_begun) launcher->ranks->arrive(launcher->rank, call);
      }
      *has_begun = true;
      for (const auto& call : calls) launcher->ranks->finish(launcher->rank, call);
      return std::ranges::all_of(
          calls, [](const auto& call) { return std::atomic_ref(call->is_done).load(); });
    };
    const bool is_queued = cuda.queue(launch.stream, is_over) == cuda::kSuccess;
    if (!is_queued) misuses.add("a stream that has ended");
    return nccl::kSuccess;
  }

  Result finalize(Communicator communicator) {
    const std::shared_ptr<Member> finalizing = member(communicator, "finalizing");
    if (!finalizing) return kInvalidArgument;
    return meet(*finalizing->ranks, finalizing->rank, "finalizing", finalizing.get());
  }

  Result end(Communicator communicator, bool aborts) {
    const std::shared_ptr<Member> ending = member(communicator, aborts ? "aborting" : "destroying");
    if (!ending) return kInvalidArgument;
    std::unique_lock lock(mutex);
    const std::shared_future<void> until = aborts ? aborts_return : std::shared_future<void>();
    lock.unlock();
    if (until.valid()) until.wait();
    lock.lock();
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
  define<"ncclCommFinalize">(
      functions, [](S& s, Communicator communicator) { return s.finalize(communicator); });
  define<"ncclCommDestroy">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, false); });
  define<"ncclCommAbort">(
      functions, [](S& s, Communicator communicator) { return s.end(communicator, true); });
}

template <Kind kKind>
constexpr auto kReduce = [](S& s, const void* input, void* output, std::size_t count,
                            DataTypeNumber type, ReductionNumber op, Communicator communicator,
                            StreamHandle stream) {
  return s.take({kKind, input, output, count, type, op}, communicator, stream);
};

void add_calls(Functions& functions) {
  define<"ncclGroupStart">(functions, [](S&) { return ++calls_of_thread.depth, nccl::kSuccess; });
  define<"ncclGroupEnd">(functions, [](S& s) {
    CallsOfThread& mine = calls_of_thread;
    if (--mine.depth > 0) return nccl::kSuccess;
    Result result = nccl::kSuccess;
    for (auto& [communicator, launch] : std::exchange(mine.launches, {})) {
      result = s.launch(communicator, launch);
    }
    return result;
  });
  define<"ncclAllReduce">(functions, kReduce<Kind::AllReduce>);
  define<"ncclReduceScatter">(functions, kReduce<Kind::ReduceScatter>);
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
  Functions& functions = fake::current_state()->symbols;
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
  Functions functions = fake::current_state()->symbols;
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
