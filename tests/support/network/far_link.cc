// SPDX-License-Identifier: Apache-2.0
// A switch between network namespaces that holds every frame back for a while, so that hosts which
// one machine plays are far from each other: far_link --delay-ms 10 --device ronde0 SPACE...
// --between 0,2 delays only what goes between these two of the spaces, in both directions.
// Each namespace of `ip netns` gets a tap device. Prints "ready" once they are there, and runs
// until it is killed; the devices then go. Rates are left to tbf.
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

/// Frames come unsegmented, behind a header of virtio that says how the kernel would cut them: so a
/// Gbit/s is 2,000 frames a second.
constexpr std::size_t kHeader = 10;
constexpr std::size_t kLargestFrame = kHeader + 14 + 65536;
/// More are lost, as in a switch whose memory is full.
constexpr std::size_t kMostFrames = 8192;
/// What the devices say, as UCX chooses by it.
constexpr std::uint32_t kMegabits = 1000;

struct Options {
  double delay_ms = 0;
  double loss = 0;
  unsigned seed = 1;
  std::string device = "ronde0";
  std::vector<std::size_t> between;  ///< empty: all
  std::vector<std::string> spaces;
};

struct Frame {
  Clock::time_point due;
  std::size_t from;
  std::vector<char> bytes;
};

void check(bool holds, const std::string& what) {
  if (!holds) throw std::system_error(errno, std::generic_category(), what);
}

void tell_speed(const std::string& device) {
  ethtool_cmd command{};
  ifreq request{};
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  command.cmd = ETHTOOL_GSET;
  check(::ioctl(any, SIOCETHTOOL, &request) == 0, "ETHTOOL_GSET");
  command.cmd = ETHTOOL_SSET;
  ethtool_cmd_speed_set(&command, kMegabits);
  check(::ioctl(any, SIOCETHTOOL, &request) == 0, "ETHTOOL_SSET");
  ::close(any);
}

/// A device in a namespace; this thread is in that one afterwards.
int make_tap(const std::string& space, const std::string& device) {
  const int there = ::open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  check(there >= 0 && ::setns(there, CLONE_NEWNET) == 0, "the namespace " + space);
  ::close(there);
  const int tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  check(tap >= 0, "/dev/net/tun");
  ifreq request{};
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  check(::ioctl(tap, TUNSETIFF, &request) == 0, "TUNSETIFF");
  check(::ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) == 0, "TUNSETOFFLOAD");
  tell_speed(device);
  return tap;
}

class Switch {
 public:
  explicit Switch(const Options& options)
      : delay_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double, std::milli>(options.delay_ms))),
        lost_(options.loss),
        random_(options.seed),
        between_(options.between.begin(), options.between.end()) {
    for (const std::string& space : options.spaces) {
      ports_.push_back({make_tap(space, options.device), POLLIN, 0});
    }
  }

  [[noreturn]] void run() {
    while (true) {
      timespec left{};
      if (!frames_.empty()) left.tv_nsec = nanoseconds_until(frames_.front().due);
      check(::ppoll(ports_.data(), ports_.size(), frames_.empty() ? nullptr : &left, nullptr) >= 0,
            "ppoll");
      for (std::size_t port = 0; port < ports_.size(); ++port) {
        if ((ports_[port].revents & POLLIN) != 0) take_from(port);
      }
      for (const auto now = Clock::now(); !frames_.empty() && frames_.front().due <= now;) {
        deliver(frames_.front());
        unused_.push_back(std::move(frames_.front().bytes));
        frames_.pop_front();
      }
    }
  }

 private:
  static long nanoseconds_until(Clock::time_point due) {
    constexpr long kMost = 999'999'999;
    return std::clamp(static_cast<long>((due - Clock::now()).count()), 0L, kMost);
  }

  /// One at a time, in turn with the others.
  void take_from(std::size_t port) {
    Frame frame = {Clock::now() + delay_, port, {}};
    if (!unused_.empty()) {
      frame.bytes = std::move(unused_.back());
      unused_.pop_back();
    }
    frame.bytes.resize(kLargestFrame);
    const ssize_t got = ::read(ports_[port].fd, frame.bytes.data(), frame.bytes.size());
    if (got < static_cast<ssize_t>(kHeader + 12)) return;  // its device is down
    frame.bytes.resize(static_cast<std::size_t>(got));
    home_[address_in(frame, 6)] = port;
    if (!is_far(frame)) return deliver(frame);
    if (frames_.size() < kMostFrames && !lost_(random_)) frames_.push_back(std::move(frame));
  }

  bool is_far(const Frame& frame) const {
    if (between_.empty()) return true;
    const auto home = home_.find(address_in(frame, 0));
    return home != home_.end() && std::set{frame.from, home->second} == between_;
  }

  static std::string address_in(const Frame& frame, std::size_t offset) {
    return {frame.bytes.data() + kHeader + offset, 6};
  }

  /// To the port where its destination was last seen, or to all. A device that is down loses it.
  void deliver(const Frame& frame) {
    const auto home = home_.find(address_in(frame, 0));
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      if (port == frame.from || (home != home_.end() && home->second != port)) continue;
      [[maybe_unused]] const ssize_t written =
          ::write(ports_[port].fd, frame.bytes.data(), frame.bytes.size());
    }
  }

  const Clock::duration delay_;
  std::bernoulli_distribution lost_;
  std::mt19937 random_;
  const std::set<std::size_t> between_;  ///< ports
  std::vector<pollfd> ports_;
  std::map<std::string, std::size_t> home_;  ///< the port of an address
  std::deque<Frame> frames_;                 ///< in the order in which they are due
  std::vector<std::vector<char>> unused_;
};

}  // namespace

int main(int count, char** words) {
  Options options;
  CLI::App app("A switch with delay between network namespaces.");
  app.add_option("--delay-ms", options.delay_ms, "of each frame, one way")
      ->check(CLI::Range(0, 900));
  app.add_option("--loss", options.loss, "the part of the frames that is lost")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "of what is lost");
  app.add_option("--between", options.between, "the numbers of two spaces")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--device", options.device, "the name of the device in each namespace");
  app.add_option("spaces", options.spaces, "as `ip netns` names them")->required();
  CLI11_PARSE(app, count, words);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  // Frames do not wait for ranks that keep all cores busy.
  ::setpriority(PRIO_PROCESS, 0, -15);
  try {
    Switch all(options);
    std::cout << "ready" << std::endl;
    all.run();
  } catch (const std::system_error& error) {
    std::cerr << "far_link: " << error.what() << "\n";
    return 1;
  }
}
