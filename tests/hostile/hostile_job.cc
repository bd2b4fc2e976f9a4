// SPDX-License-Identifier: Apache-2.0
// A rank in a hostile place: hostile_job PLACE [COMMAND]. It trains, makes the place what it is and
// runs the shell's command there, trains again with every sum checked, and ends with 0; or it says
// what Ronde threw, and ends with 9.
// hostile_job without ERROR CALL,CALL... PROGRAM...: becomes the program, for which, and for all
// that it starts, these system calls fail. Errors and calls are numbers.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <ronde/ronde.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using std::chrono::steady_clock;

std::atomic<int> signals = 0;
std::atomic<bool> wall_clock_steps = false;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("it does not hold that " + what);
}

ronde::Request sum_of(std::vector<float>& values, const std::string& name) {
  ronde::Request request;
  request.name = name;
  request.op = ronde::ReduceOp::Sum;
  request.shape = {static_cast<std::int64_t>(values.size())};
  request.input = request.output = values.data();
  return request;
}

void train() {
  for (int step = 0; step < 20; ++step) {
    for (const std::size_t elements : {10U, 100'000U}) {
      std::vector<float> values(elements, static_cast<float>(ronde::rank() + step));
      ronde::run(sum_of(values, "gradient" + std::to_string(elements)));
      const int size = ronde::size();
      const auto sum = static_cast<float>(size * (size - 1) / 2 + size * step);
      require(values == std::vector<float>(elements, sum), "a sum is right");
    }
    ronde::mark_step();
  }
}

/// An operation that rank 1 does not submit ends by its timeout, neither before nor long after.
void time_out() {
  constexpr std::chrono::milliseconds kTimeout{4000}, kPatience{50};
  if (ronde::rank() == 0) {
    std::vector<float> values(5, 1.0F);
    ronde::Request request = sum_of(values, "late");
    request.timeout = kTimeout;
    const auto start = steady_clock::now();
    const ronde::Work work = ronde::submit(std::move(request));
    require(!work.wait_for(kPatience), "the operation waits for the other rank");
    require(steady_clock::now() - start >= kPatience, "wait_for() lasts as long as it is told");
    try {
      work.wait();
      require(false, "the operation fails");
    } catch (const ronde::UsageError&) {
      require(steady_clock::now() - start >= kTimeout, "it fails by its timeout");
    }
  }
  ronde::barrier();
}

[[noreturn]] void become_without(char** words) {
  std::vector<sock_filter> lines = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const auto error = static_cast<std::uint32_t>(std::stoul(words[0])) & SECCOMP_RET_DATA;
  std::istringstream calls(words[1]);
  for (std::string call; std::getline(calls, call, ',');) {
    const auto number = static_cast<std::uint32_t>(std::stoul(call));
    lines.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    lines.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  lines.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(lines.size()), lines.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) {
    execvp(words[2], words + 2);
  }
  std::cerr << "seccomp: " << std::strerror(errno) << std::endl;
  std::exit(127);
}

constexpr int kStorm[] = {SIGALRM, SIGPROF};

/// From now on there is a signal every 100 us, and Ronde's threads will get them, too.
void begin_storm(int flags) {
  struct sigaction action = {};
  action.sa_handler = [](int) { ++signals; };
  action.sa_flags = flags;
  for (const int number : kStorm) sigaction(number, &action, nullptr);
  const itimerval often = {{0, 100}, {0, 100}};
  setitimer(ITIMER_REAL, &often, nullptr);
  setitimer(ITIMER_PROF, &often, nullptr);
}

/// From now on, Ronde's threads get the signals, not this one.
void leave_storm() {
  sigset_t storm;
  sigemptyset(&storm);
  for (const int number : kStorm) sigaddset(&storm, number);
  sigprocmask(SIG_BLOCK, &storm, nullptr);
}

void use_up_descriptors() {
  while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
  }
  try {
    ronde::create_process_set({0, 1});
    require(false, "a set needs descriptors");
  } catch (const ronde::Error& error) {
    std::cerr << "refused: " << error.what() << std::endl;
  }
}

void use_up_memory() {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (int i = 0; i < 1024; ++i) std::memset(new char[kPiece], 1, kPiece);
}

/// One that is made before init is destroyed after Ronde has left the group by itself.
class Static {
 public:
  explicit Static(bool is_made_before_init) : is_made_before_init_(is_made_before_init) {}
  ~Static() {
    const bool is_initialized = ronde::is_initialized();
    ronde::shutdown();
    try {
      ronde::rank();
    } catch (const ronde::NotInitializedError&) {
      if (is_initialized != is_made_before_init_) std::cout << "destroyed" << std::endl;
    }
  }

 private:
  const bool is_made_before_init_;
};

void enter(const std::string& place) {
  if (place == "storm") begin_storm(0);
  if (place == "restarting storm") begin_storm(SA_RESTART);
  if (place == "clock") wall_clock_steps = true;
  // Where the other rank fails first, `ronde run` tells this one to end before it can say why.
  if (place == "deaf") std::signal(SIGTERM, SIG_IGN);
  if (place == "static") static const Static kEarly(true);
}

void stay(const std::string& place) {
  if (place.ends_with("storm")) leave_storm();
  if (place == "clock") time_out();
  if (place == "descriptors") use_up_descriptors();
  if (place == "memory" && ronde::rank() == 1) use_up_memory();
  if (place == "static") static const Static kLate(false);
}

}  // namespace

/// Instead of the system's: the wall clock may be a day fast now, and a day slow at the next look.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static std::atomic<int> looks = 0;
  const auto code = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (wall_clock_steps && clock == CLOCK_REALTIME) time->tv_sec += ++looks % 2 * 172'800 - 86'400;
  return code;
}

int main(int argc, char** argv) {
  const std::string place = argc > 1 ? argv[1] : "";
  if (place == "without" && argc > 4) become_without(argv + 2);
  try {
    enter(place);
    ronde::init();
    train();
    stay(place);
    if (argc > 2) require(std::system(argv[2]) == 0, "the command ends well");
    train();
    // In one piece, as mpiexec does not keep the lines of ranks apart.
    std::cout << "rank " + std::to_string(ronde::rank()) + " has trained, data by " +
                     ronde::default_runtime().backend_name(ronde::DeviceKind::Cpu) + ", " +
                     (signals > 100 ? "many" : "few") + " signals\n"
              << std::flush;
    if (place != "static") ronde::shutdown();
  } catch (const ronde::Error& error) {
    std::cerr << "caught: " << error.what() << std::endl;
    return 9;
  }
}
