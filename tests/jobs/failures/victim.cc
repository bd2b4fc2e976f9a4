// SPDX-License-Identifier: Apache-2.0
// One rank of a job in which ranks fail: mp_victim <folder> <moment> <end> <victims> <seed>.
// The victims (ranks, separated by commas) meet their <end> at the <moment>; the other ranks write
// what they got of it into the folder, and check that the group stays dead for them.
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/jobs/failures/notes.h"
#include "tests/support/processes/launcher_rank.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

/// Sums of this rank's number plus one, all submitted together as a group, then waited for.
void reduce(const std::vector<std::size_t>& counts, ProcessSet set, float expected) {
  // Left alone on a failure: see Note [Buffers after a group error].
  auto* const buffers = new std::vector<std::vector<float>>();
  std::vector<Request> requests;
  for (const std::size_t count : counts) {
    buffers->emplace_back(count, static_cast<float>(rank() + 1));
  }
  for (std::vector<float>& buffer : *buffers) {
    Request request;
    request.name = "tensor " + std::to_string(requests.size());
    request.set = set;
    request.shape = {static_cast<std::int64_t>(buffer.size())};
    request.input = request.output = buffer.data();
    requests.push_back(std::move(request));
  }
  for (const Work& work : submit_group(std::move(requests))) work.wait();
  for (const std::vector<float>& buffer : *buffers) {
    if (expected > 0.0F && (buffer.front() != expected || buffer.back() != expected)) {
      throw std::runtime_error("a sum is wrong");
    }
  }
  delete buffers;
}

std::vector<std::size_t> random_counts(std::mt19937& random) {
  std::vector<std::size_t> counts(1 + random() % 4);
  for (std::size_t& count : counts) count = 1 + random() % 400'000;
  return counts;
}

/// Makes process sets, reduces in them, and removes them, one after the other.
void run_sets(unsigned seed, const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  while (!stops.load()) {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(2 + random() % (ranks.size() - 1));
    const ProcessSet set = add_process_set(ranks);
    const int sum = std::accumulate(ranks.begin(), ranks.end(), static_cast<int>(ranks.size()));
    for (std::size_t steps = random() % 5; steps > 0; --steps) {
      const std::vector<std::size_t> counts = random_counts(random);
      if (rank_in(set)) reduce(counts, set, static_cast<float>(sum));
    }
    remove_process_set(set);
  }
}

/// Epochs of uneven data: groups of sums until this rank has no more, then a join.
void run_joins(unsigned seed, const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  while (!stops.load()) {
    std::vector<std::size_t> steps;
    for (int rank = 0; rank < size(); ++rank) steps.push_back(random() % 6);
    for (std::size_t step = 0; step < 6; ++step) {
      const std::vector<std::size_t> counts = random_counts(random);
      if (step < steps[static_cast<std::size_t>(rank())]) reduce(counts, kGlobalSet, 0.0F);
    }
    join();
  }
}

constexpr int kSurvivorStatus = 9;

struct Arguments {
  std::filesystem::path folder;
  std::string moment;
  std::string end;
  std::set<int> victims;
  unsigned seed;
};

void add_ends(nlohmann::json& report, const Arguments& arguments, const Notes& notes) {
  for (const int victim : arguments.victims) {
    if (!notes.exists("end", victim)) continue;
    report["ends_s"].push_back(std::stod(notes.read("end", victim)));
  }
}

/// Where an operation's data are. They live until its end is known, else as long as the process: a
/// victim may end at any moment.
struct Buffer {
  explicit Buffer(std::size_t count) : own(count), data(own) {}
  /// At the same offset on all ranks that make and destroy them in the same order.
  Buffer(std::size_t count, std::shared_ptr<SymmetricHeap> of) : heap(std::move(of)) {
    if (!heap) throw std::runtime_error("these ranks have no symmetric heap");
    const std::size_t bytes = count * sizeof(float);
    offset = heap->find(bytes).value();
    if (!heap->reserve(offset, bytes)) throw std::runtime_error("the block is not free");
    data = {reinterpret_cast<float*>(heap->own(offset)), count};
  }
  ~Buffer() {
    if (heap) heap->release(offset);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::vector<float> own;
  std::shared_ptr<SymmetricHeap> heap;
  std::size_t offset = 0;
  std::span<float> data;
};

Request sum_of(Buffer& buffer, const std::string& name, bool symmetric = false) {
  const std::span<float> data = buffer.data;
  std::ranges::fill(data, static_cast<float>(rank() + 1));
  Request request;
  request.name = name;
  request.shape = {static_cast<std::int64_t>(data.size())};
  request.input = request.output = data.data();
  request.symmetric = request.lazy = symmetric;
  return request;
}

/// An operation that is waited for later.
struct Pending {
  Work work;
  Buffer* buffer;
};

Pending start_sum(const std::string& name, std::size_t count, bool symmetric = false) {
  auto* const buffer =
      symmetric ? new Buffer(count, default_runtime().symmetric_heap()) : new Buffer(count);
  return {submit(sum_of(*buffer, name, symmetric)), buffer};
}

void finish_sum(const Pending& pending) {
  pending.work.wait();
  const auto size = static_cast<float>(ronde::size());
  const float expected = size * (size + 1.0F) / 2.0F;
  const std::span<float> data = pending.buffer->data;
  if (data.front() != expected || data.back() != expected) {
    throw std::runtime_error("a sum is wrong");
  }
  delete pending.buffer;
}

/// Many operations of all sizes, up to `most` in flight, until told to stop or thrown out.
void run_stream(unsigned seed, std::size_t scale, std::size_t most,
                const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  std::deque<Pending> window;
  for (unsigned i = 0; !stops.load(); ++i) {
    // Half of the names come again with another shape, so that the response cache changes, too.
    const std::size_t count = 1 + scale * (random() % 1000) * (random() % 300);
    window.push_back(start_sum("tensor " + std::to_string(i % 2 == 0 ? i : i % 53), count));
    if (window.size() < most) continue;
    finish_sum(window.front());
    window.pop_front();
  }
}

/// Large messages around the ring of ranks, each waited for before the next.
void run_messages(unsigned seed, const std::atomic<bool>& stops) {
  std::mt19937 random(seed);  // the same on every rank
  const int size = ronde::size();
  while (!stops.load()) {
    const std::size_t count = 1 + random() % 10'000'000;
    auto* const sent = new Buffer(count);
    auto* const received = new Buffer(count);
    std::ranges::fill(sent->data, static_cast<float>(rank()));
    Request request;
    request.kind = Collective::Recv;
    request.shape = {static_cast<std::int64_t>(count)};
    request.output = received->data.data();
    request.peer = (rank() + size - 1) % size;
    const int source = request.peer;
    const Work arrival = submit(request);
    request.kind = Collective::Send;
    request.input = sent->data.data();
    request.peer = (rank() + 1) % size;
    submit(request).wait();
    arrival.wait();
    const std::span<float> data = received->data;
    const auto expected = static_cast<float>(source);
    if (data.front() != expected || data.back() != expected) {
      throw std::runtime_error("a message is wrong");
    }
    delete sent;
    delete received;
  }
}

/// An alltoall with splits. `known`: called once this rank knows what it receives, before the data.
void run_alltoall(const std::function<void()>& known) {
  const auto ranks = static_cast<std::size_t>(size());
  Request request = sum_of(*new Buffer(ranks * 100'000), "never complete");
  request.kind = Collective::Alltoall;
  request.splits.assign(ranks, 100'000);
  request.allocate_output = [=](const auto&) -> void* {
    known();
    return (new Buffer(ranks * 100'000))->data.data();
  };
  run(request);
}

/// A training step again and again, so that its schedule freezes: sums of symmetric buffers, all
/// submitted, then waited for.
void run_steps(unsigned seed, const std::atomic<bool>& stops) {
  constexpr std::size_t kTensors = 40;
  std::mt19937 random(seed);  // the same on every rank
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < kTensors; ++i) counts.push_back(1 + random() % 300'000);
  while (!stops.load()) {
    std::vector<Pending> step;
    for (std::size_t i = 0; i < kTensors; ++i) {
      step.push_back(start_sum("gradient " + std::to_string(i), counts[i], true));
    }
    for (const Pending& pending : step) finish_sum(pending);
  }
}

std::uint64_t counter_here(const std::string& part, const std::string& name) {
  return counter_of(default_runtime(), part, name);
}

/// Device and inode of every memory that this process shares with other ranks.
std::string shared_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:ronde") == std::string::npos) continue;
    std::istringstream words(line);
    std::string address, access, offset, device, inode;
    words >> address >> access >> offset >> device >> inode;
    found += device + " " + inode + "\n";
  }
  return found;
}

class Rank {
 public:
  explicit Rank(const Arguments& arguments)
      : arguments_(arguments), rank_(rank()), notes_(arguments.folder, rank_) {
    notes_.write_own("pid", std::to_string(getpid()));
    notes_.write_own("memory", shared_memory());
    barrier();
  }

  int live() { return arguments_.victims.contains(rank_) ? fail() : survive(); }

 private:
  bool is_stream() const { return arguments_.moment.starts_with("in a stream"); }
  /// By which a victim chooses its moment, as it changes within operations; empty: it waits.
  std::string counter() const {
    if (arguments_.moment.ends_with("symmetric buffers")) return "symmetric_chunks_here";
    return arguments_.moment.ends_with("many at once") ? "rounds" : "";
  }
  void run_until_the_end() {
    const std::string& moment = arguments_.moment;
    if (moment.ends_with("symmetric buffers")) return run_steps(arguments_.seed, stream_ends_);
    if (moment.ends_with("of sets")) return run_sets(arguments_.seed, stream_ends_);
    if (moment.ends_with("of joins")) return run_joins(arguments_.seed, stream_ends_);
    if (moment.ends_with("messages")) return run_messages(arguments_.seed, stream_ends_);
    run_stream(arguments_.seed, moment.ends_with("large operations") ? 20 : 1,
               counter().empty() ? 5 : 40, stream_ends_);
  }

  // A victim.

  int fail() {
    if (is_stream()) return fail_in_stream();
    if (arguments_.moment == "between rows and data") run_alltoall([this] { end(); });
    if (arguments_.moment != "while idle") {
      for (int rank = 0; rank < size(); ++rank) {
        if (!arguments_.victims.contains(rank)) notes_.await("waits", rank);
      }
    }
    const int status = end();
    return cuts() ? survive() : status;
  }

  /// At some moment that is not chosen: in the middle of whatever this rank is doing then.
  int fail_in_stream() {
    std::thread([this] {
      std::mt19937 random(arguments_.seed + static_cast<unsigned>(rank_));
      if (const std::string name = counter(); !name.empty()) {
        const std::uint64_t last = counter_here("shm", name) + 1 + random() % 3000;
        while (counter_here("shm", name) < last) std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
      }
      if (ends_inside()) end();
      stream_ends_.store(!cuts());
    }).detach();
    if (cuts()) return survive();
    try {
      run_until_the_end();
    } catch (const GroupError&) {
      // Another victim was first.
    }
    return end();
  }

  /// The victim ends on another thread than that which runs operations.
  bool ends_inside() const {
    return std::set<std::string>{"cuts the link", "is killed", "quits by _exit", "stops"}.contains(
        arguments_.end);
  }
  bool cuts() const { return arguments_.end == "cuts the link"; }

  /// Of this host, for both directions. Its ranks are as alive as those that they lose.
  static int cut_link() {
    if (std::system("ip link set dev \"$RONDE_TEST_LINK\" down") == 0) return 0;
    throw std::runtime_error("the link RONDE_TEST_LINK cannot be cut");
  }

  int end() {
    static std::atomic<bool> ends = false;
    while (ends.exchange(true)) pause();  // another thread of this process was first
    notes_.write_own("end", std::to_string(now_s()));
    const std::string& end = arguments_.end;
    if (cuts()) return cut_link();
    if (end == "is killed") raise(SIGKILL);
    if (end == "is killed while a child holds its sockets") leave_child_and_die();
    if (end == "stops") raise(SIGSTOP);
    if (end == "returns") return 0;
    if (end == "throws") throw std::runtime_error("the victim throws");
    if (end == "calls exit") std::exit(3);
    if (end == "calls exit on another thread") std::thread([] { std::exit(3); }).join();
    if (end == "calls exit in a callback") exit_in_callback();
    if (end.starts_with("calls exit while a thread")) exit_while_blocked();
    if (end == "quits by _exit") _exit(4);
    if (end == "shuts down") return shut_down_early();
    if (end == "never submits") return never_submit();
    if (end == "aborts") return abort_job();
    throw std::invalid_argument("no such end: " + end);
  }

  /// The child outlives the time that survivors may take to report the death.
  static void leave_child_and_die() {
    constexpr unsigned kChildLivesInS = 12;
    if (fork() == 0) {
      alarm(kChildLivesInS);
      while (true) pause();
    }
    raise(SIGKILL);
  }

  [[noreturn]] void exit_in_callback() {
    Request request = sum_of(*new Buffer(5), "of one rank");
    request.set = create_process_set({rank_});
    const Work work = submit(std::move(request));
    work.on_done([] { std::exit(3); });
    // Not work.wait(): it may return while the callback is about to run, and this thread would end
    // the process before that.
    while (true) pause();
  }

  /// The engine is woken, or given an operation, right before the thread waits for it.
  void exit_while_blocked() {
    const std::string& end = arguments_.end;
    const std::uint64_t before = counter_here("submission", "wakes");
    const std::uint64_t submitted = counter_here("submission", "operations");
    std::thread([end] {
      try {
        auto* const buffer = new Buffer(5);
        if (end.ends_with("runs an operation")) run(sum_of(*buffer, "of one rank"));
        if (end.ends_with("makes a set")) create_process_set({0, 1, 2}, "never");
        if (end.ends_with("shuts down")) shutdown();
      } catch (const Error&) {
        // The process is about to end.
      }
    }).detach();
    while (counter_here("submission", "wakes") == before &&
           counter_here("submission", "operations") == submitted) {
      std::this_thread::yield();
    }
    std::exit(3);
  }

  int shut_down_early() {
    return report_error([] { shutdown(); });
  }

  int abort_job() {
    abort("enough");
    return report_error([] { finish_sum(start_sum("after the end", 5)); });
  }

  int never_submit() {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != rank_) notes_.await("report", rank);
    }
    return report_error([] { finish_sum(start_sum("too late", 5)); });
  }

  // A survivor.

  int survive() {
    if (arguments_.moment == "while idle") {
      for (const int victim : arguments_.victims) await_death(victim);
      return report_error([] { finish_sum(start_sum("after the end", 1000)); });
    }
    if (is_stream()) return report_error([&] { run_until_the_end(); });
    if (arguments_.moment == "while others shut down") {
      return report_error([&] {
        notes_.write_own("waits");
        shutdown();
      });
    }
    if (arguments_.moment == "between rows and data") {
      return report_error([] { run_alltoall([] {}); });
    }
    const auto wait_for_the_dead = [&] {
      const Pending pending = start_sum("never complete", 1000);
      notes_.write_own("waits");
      finish_sum(pending);
    };
    if (arguments_.moment == "while others wait and do not catch") wait_for_the_dead();
    return report_error(wait_for_the_dead);
  }

  void await_death(int victim) const {
    notes_.await("end", victim);
    // glibc 2.36 declares pidfd_open for C alone.
    const auto process =
        static_cast<int>(syscall(SYS_pidfd_open, std::stoi(notes_.read("pid", victim)), 0));
    if (process < 0 && errno == ESRCH) return;  // its launcher has seen the end already
    if (process < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
    pollfd ended = {process, POLLIN, 0};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    close(process);
  }

  /// What `action` throws, and whether all that follows says the same.
  int report_error(const std::function<void()>& action) {
    nlohmann::json report = outcome_of(action);
    if (report["threw"] == "GroupError") check_aftermath(report);
    add_ends(report, arguments_, notes_);
    notes_.write_report(report);
    return kSurvivorStatus;
  }

  static void check_aftermath(nlohmann::json& report) {
    report["later"] = "the same";
    // After a shutdown() the default runtime is gone: asking it is another error.
    if (is_initialized()) {
      const nlohmann::json later = outcome_of([] { finish_sum(start_sum("later", 3)); });
      const bool same = later["threw"] == "GroupError" && later["text"] == report["text"] &&
                        later["failed_rank"] == report["failed_rank"];
      if (!same) report["later"] = later;
    }
    const double start = now_s();
    shutdown();
    report["shutdown_s"] = now_s() - start;
  }

  const Arguments arguments_;
  const int rank_;
  const Notes notes_;
  std::atomic<bool> stream_ends_{false};
};

Arguments parse(char** words) {
  Arguments arguments = {
      words[1], words[2], words[3], {}, static_cast<unsigned>(std::stoul(words[5]))};
  std::istringstream victims(words[4]);
  for (std::string rank; std::getline(victims, rank, ',');) {
    arguments.victims.insert(std::stoi(rank));
  }
  return arguments;
}

/// RONDE_TEST_HOSTS has a letter for each rank, which names its host.
void stand_on_simulated_host() {
  const char* const hosts = std::getenv("RONDE_TEST_HOSTS");
  if (hosts == nullptr) return;
  const auto rank = static_cast<std::size_t>(launched_rank());
  setenv("RONDE_HOST_ID", std::string(1, std::string(hosts).at(rank)).c_str(), 1);
}

/// The victims end while all make their backends.
int fail_in_init(const Arguments& arguments) {
  const int rank = launched_rank();
  const Notes notes(arguments.folder, rank);
  BackendFactory factory;
  factory.create = [&](BackendContext&) -> std::unique_ptr<Backend> {
    notes.write_own("end", std::to_string(now_s()));
    if (arguments.victims.contains(rank)) raise(SIGKILL);
    throw std::runtime_error("no rank gets as far as to hear of this");
  };
  register_backend("deadly", factory);
  setenv("RONDE_CPU_BACKEND", "deadly", 1);
  nlohmann::json report = outcome_of([] { init(); });
  report["later"] = is_initialized() ? "initialised" : "the same";
  report["shutdown_s"] = 0.0;
  add_ends(report, arguments, notes);
  notes.write_report(report);
  return kSurvivorStatus;
}

}  // namespace
}  // namespace ronde::test

int main(int count, char** words) {
  using namespace ronde::test;
  if (count != 6) {
    std::cerr << "usage: mp_victim <folder> <moment> <end> <victims> <seed>\n";
    return 2;
  }
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const Arguments arguments = parse(words);
  stand_on_simulated_host();
  if (arguments.moment == "in init") return fail_in_init(arguments);
  ronde::init();
  // A rank that fails by an exception is not to have it caught here.
  return Rank(arguments).live();
}
