// SPDX-License-Identifier: Apache-2.0
// The rank's side of Note [Members of an elastic job] (tools/run/launcher/membership.cc).
#include "ronde/reform.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "api/src/process.h"
#include "core/src/base/json.h"
#include "core/src/base/text.h"
#include "observe/live/run_board.h"
#include "ronde/error.h"
#include "ronde/log.h"
#include "ronde/ronde.h"
#include "ronde/run.h"

namespace ronde {
namespace {

using Clock = std::chrono::steady_clock;
using JobJson = nlohmann::json;

/// How long one call of get() waits for an address.
constexpr std::chrono::milliseconds kOneWait{100};
/// All members are there when they begin to meet.
constexpr std::chrono::seconds kLongestMeeting{20};

/// The socket to the agent of this host, which passes messages on to the launcher.
///
/// Thread-safety: every member may be called from any thread.
class JobChannel {
 public:
  /// Null in a process that `ronde run --elastic` has not started.
  static JobChannel* of_process() {
    static JobChannel* const channel = [] {
      const char* const number = std::getenv(RunBoard::kChannelVariable);
      return number == nullptr ? nullptr : new JobChannel(std::atoi(number));
    }();
    return channel;
  }

  /// Asks for the next group, and waits for it.
  Members join(const JobJson& question) {
    const std::lock_guard lock(mutex_);
    members_.reset();
    say({{"ask", question}});
    while (!members_) read(std::chrono::hours(1));
    return *members_;
  }

  /// Whether a group before the present one had started, of which no rank is left.
  bool goes_on() const noexcept { return goes_on_.load(); }

  /// Implements KeyValueStart for a group.
  /// @{
  void put(int number, const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    say({{"put", key}, {"value", value}, {"number", number}});
  }
  std::optional<std::string> get(int number, const std::string& key) {
    const std::lock_guard lock(mutex_);
    if (!addresses_.contains(key)) {
      if (void_ >= number) throw Error("another rank of the group has ended");
      read(kOneWait);
    }
    const auto found = addresses_.find(key);
    return found == addresses_.end() ? std::nullopt : std::optional(found->second);
  }
  /// @}

  void leave() {
    const std::lock_guard lock(mutex_);
    say({{"leave", true}});
  }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    say({{"fail", why}});
  }
  /// Whether a group after `number` is wanted.
  bool is_wanted_after(int number) {
    const std::lock_guard lock(mutex_);
    read(std::chrono::milliseconds(0));
    return wanted_after_ == number;
  }

 private:
  explicit JobChannel(int socket) : socket_(socket) { fcntl(socket_, F_SETFD, FD_CLOEXEC); }

  [[noreturn]] static void lose() {
    throw Error("`ronde run`, which decides about the ranks of this job, is gone");
  }

  void say(const JobJson& message) const {
    const std::string text = message.dump() + "\n";
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) lose();
      sent += static_cast<std::size_t>(count);
    }
  }

  /// Takes what has come, or comes within `limit`.
  void read(std::chrono::milliseconds limit) {
    pollfd wanted{socket_, POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(limit.count())) <= 0) return;
    std::array<char, 4096> bytes{};
    const ssize_t count = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count <= 0) lose();
    text_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos;) {
      take(JobJson::parse(text_.substr(0, end)));
      text_.erase(0, end + 1);
    }
  }

  void take(const JobJson& message) {
    if (message.contains("members")) {
      addresses_.clear();
      members_ = {.number = message.at("number"),
                  .slots = message.at("members"),
                  .own_slot = message.at("slot")};
      goes_on_.store(message.at("goes_on"));
    }
    if (message.contains("put")) addresses_[message.at("put")] = message.at("value");
    if (message.contains("over")) throw Error("the job is told to end: there is no next group");
    if (message.contains("grow")) wanted_after_ = message.at("grow");
    if (message.contains("void")) void_ = message.at("void");
  }

  const int socket_;
  std::atomic<bool> goes_on_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::string text_;  ///< not yet a whole line
  std::optional<Members> members_;
  std::map<std::string, std::string> addresses_;  ///< of the group that starts
  int wanted_after_ = 0;                          ///< this group, another one is wanted
  int void_ = 0;                                  ///< a member of this group has ended
};

JobChannel& channel_for(const std::string& function) {
  JobChannel* const channel = JobChannel::of_process();
  if (channel != nullptr) return *channel;
  throw UsageError(function +
                   " was called in a process that `ronde run --elastic` has not started: there is "
                   "nobody who decides about groups. Start the job so, or call ronde::init()");
}

/// The last group of this process, as it asks for the next.
struct LastGroup {
  Members members = {};
  bool has_started = false;
  int blamed = -1;  ///< the slot of another process, for the end of the group

  void blame(int rank) {
    const bool is_known = rank >= 0 && rank < static_cast<int>(members.slots.size());
    blamed = is_known ? members.slots[static_cast<std::size_t>(rank)] : -1;
    if (blamed == members.own_slot) blamed = -1;
  }
};

/// Guarded by the rule that one thread at a time starts and ends the world of init().
LastGroup last_group;

/// Ends the group, if it has not ended by itself.
void end_group() {
  if (!is_initialized()) return;
  try {
    if (const std::exception_ptr failure = Process::instance().default_world().shutdown()) {
      std::rethrow_exception(failure);
    }
  } catch (const GroupError& error) {
    last_group.blame(error.failed_rank());
  } catch (const std::exception& error) {
    Logger(LogLevel::Error, -1).error(std::string("as the group ended: ") + error.what());
  }
}

JobJson question(const ReformOptions& options) {
  const Config config = load_config_from_environment().config;
  return {{"number", last_group.members.number}, {"started", last_group.has_started},
          {"blames", last_group.blamed},         {"min_ranks", options.min_ranks},
          {"start_s", config.init_timeout_s},    {"stall_s", config.stall_abort_s}};
}

void start_group(JobChannel& channel, const Members& members) {
  const auto own = std::ranges::find(members.slots, members.own_slot);
  const int number = members.number;
  KeyValueStart ranks;
  ranks.rank = static_cast<int>(own - members.slots.begin());
  ranks.size = static_cast<int>(members.slots.size());
  ranks.prefix = "group" + std::to_string(number);
  ranks.put = [&channel, number](const std::string& key, const std::string& value) {
    channel.put(number, key, value);
  };
  ranks.get = [&channel, number](const std::string& key) { return channel.get(number, key); };
  Process::instance().init(
      {.init = {.key_value = std::move(ranks)}, .longest_meeting = kLongestMeeting},
      static_cast<std::uint32_t>(number - 1));
}

}  // namespace

bool is_elastic() noexcept {
  return JobChannel::of_process() != nullptr;
}

bool job_goes_on() noexcept {
  const JobChannel* const channel = JobChannel::of_process();
  return channel != nullptr && channel->goes_on();
}

bool reform_is_wanted() {
  JobChannel* const channel = JobChannel::of_process();
  return channel != nullptr && channel->is_wanted_after(last_group.members.number);
}

void leave_job() {
  channel_for("ronde::leave_job()").leave();
  Process::instance().default_world().leave("it leaves the job");
}

void fail_job(const std::string& why) {
  channel_for("ronde::fail_job()").fail(why);
}

Members reform(const ReformOptions& options) {
  JobChannel* const channel = &channel_for("ronde::reform()");
  end_group();
  for (;;) {
    last_group.members = channel->join(question(options));
    last_group.has_started = false;
    last_group.blamed = -1;
    try {
      start_group(*channel, last_group.members);
      last_group.has_started = true;
      return last_group.members;
    } catch (const GroupError& error) {
      last_group.blame(error.failed_rank());
      Logger(LogLevel::Warning, -1)
          .warning("slot " + std::to_string(last_group.members.own_slot) + ": group " +
                   std::to_string(last_group.members.number) + " has not started: " + error.what());
    }
  }
}

}  // namespace ronde
