// SPDX-License-Identifier: Apache-2.0
#include "ronde/world.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "api/src/process.h"
#include "core/src/base/fields.h"
#include "core/src/base/fingerprint.h"
#include "core/src/base/rank_list.h"
#include "core/src/base/text.h"
#include "ronde/error.h"
#include "ronde/ronde.h"

namespace ronde {
namespace {

/// Ranks of a world that make another one.
struct RanksOfSet {
  ProcessSet of;
  std::vector<int> ranks;  ///< within `of`
};

/// How long a message may take once both its ranks have come, and how much longer than the first
/// member the others wait, so that it can report who did not come.
constexpr std::chrono::seconds kPatience{2};
/// The longest blob: the properties of a rank, or its addresses.
constexpr std::size_t kMostBytes = std::size_t{1} << 15;
/// The first byte of an answer of the first member: it has the blobs of all, or who did not come
/// and why.
constexpr char kBlobs = 'b', kFailure = 'f';

/// Exchanges blobs among ranks of a set: each sends its own to the first of them, in one message of
/// kMostBytes. The first answers with all blobs, in two messages: their length and their bytes.
///
/// The time limit of a message fails the world that it travels in, if it passes in the middle of
/// the message. The limits are therefore later than the deadline at which a rank gives up another
/// one. The first gives up the others at its deadline; the others give up the first only if it has
/// not come at theirs, as it may have started later.
class WorldExchange {
 public:
  WorldExchange(RanksOfSet members, std::size_t own, std::string name,
                std::chrono::nanoseconds timeout)
      : members_(std::move(members)),
        own_(own),
        name_(std::move(name)),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        // No message of the program has this tag, nor one of another world that is being made.
        tag_(static_cast<std::int64_t>(
            detail::fingerprint("ronde::World " + name_ + list_ranks(members_.ranks)) >> 1)) {}

  /// net::Exchange.
  std::vector<std::string> operator()(std::string_view blob) const {
    if (blob.size() > kMostBytes - kHeader) {
      throw Error("world '" + name_ + "': the addresses of this rank are above " +
                  std::to_string(kMostBytes) + " bytes");
    }
    return own_ == 0 ? gather(blob) : hand_in(blob);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kHeader = 8;  ///< digits of the length of a blob

  struct Message {
    Work work;
    std::shared_ptr<std::string> bytes;
  };

  /// The deadline of an exchange. Later exchanges get kPatience even where the first took all time.
  Clock::time_point deadline() const { return std::max(deadline_, Clock::now() + kPatience); }

  std::vector<std::string> gather(std::string_view blob) const {
    const Clock::time_point deadline = this->deadline();
    std::vector<Message> parts = {{}};
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
      parts.push_back(start(Collective::Recv, i, std::string(kMostBytes, '\0'), deadline));
    }
    std::vector<std::string> blobs = {std::string(blob)};
    std::vector<std::size_t> came, late;
    std::exception_ptr problem;
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
      try {
        if (!wait_until(parts[i].work, deadline)) fail_waiting(i);
        const std::string& part = *parts[i].bytes;
        blobs.push_back(part.substr(kHeader, std::stoul(part.substr(0, kHeader))));
        came.push_back(i);
      } catch (...) {
        if (!problem) problem = std::current_exception();
        late.push_back(i);
      }
    }
    if (!problem) {
      answer(came, kBlobs + pack_fields(blobs));
      return blobs;
    }
    for (const std::size_t i : late) {
      if (has_come_at_last(parts[i].work)) came.push_back(i);
    }
    answer(came, kFailure + failure_of(problem));
    std::rethrow_exception(problem);
  }

  static std::string failure_of(const std::exception_ptr& problem) {
    try {
      std::rethrow_exception(problem);
    } catch (const GroupError& error) {
      return pack_fields({std::to_string(error.failed_rank()), error.what()});
    } catch (...) {
      return pack_fields({"-1", exception_text()});
    }
  }

  /// Waits until a message that may never be sent is no longer in flight.
  static bool has_come_at_last(const Work& work) {
    try {
      work.wait();
    } catch (const UsageError&) {
      return false;
    }
    return true;
  }

  void answer(const std::vector<std::size_t>& members, const std::string& text) const {
    const auto until = Clock::now() + kPatience;
    std::vector<Message> messages;
    for (const std::size_t member : members) {
      messages.push_back(start(Collective::Send, member, header_of(text), until));
      messages.push_back(start(Collective::Send, member, text, until));
    }
    for (const Message& message : messages) message.work.wait();
  }

  std::vector<std::string> hand_in(std::string_view blob) const {
    std::string part = header_of(blob).append(blob);
    part.resize(kMostBytes);
    const auto until = deadline() + kPatience;
    const Message sent = start(Collective::Send, 0, std::move(part), until);
    if (!wait_until(sent.work, until) && !has_come_at_last(sent.work)) fail_waiting(0);
    // The first has come, and answers.
    const auto answered = Clock::now() + timeout_ + 2 * kPatience;
    const std::string length = received(std::string(kHeader, '\0'), answered);
    const std::string answer = received(std::string(std::stoul(length), '\0'), answered);
    const std::size_t fields = answer.starts_with(kBlobs) ? members_.ranks.size() : 2;
    if (answer.empty()) fail_unreadable(members_.ranks.front());
    std::vector<std::string> all =
        unpack_fields_from(members_.ranks.front(), std::string_view(answer).substr(1), fields);
    if (answer.starts_with(kFailure)) throw GroupError(std::stoi(all[0]), all[1]);
    return all;
  }

  /// Receives a message of the first member.
  std::string received(std::string memory, Clock::time_point until) const {
    const Message message = start(Collective::Recv, 0, std::move(memory), until);
    message.work.wait();
    return *message.bytes;
  }

  static std::string header_of(std::string_view text) {
    std::string digits = std::to_string(text.size());
    return std::string(kHeader - digits.size(), '0') + digits;
  }

  /// Returns whether the message was done by then.
  static bool wait_until(const Work& work, Clock::time_point time) {
    const std::chrono::nanoseconds rest = time - Clock::now();
    return work.wait_for(std::max(rest, std::chrono::nanoseconds(0)));
  }

  [[noreturn]] void fail_waiting(std::size_t member) const {
    const int rank = members_.ranks.at(member);
    const bool is_world = members_.of.id == kGlobalSet.id;
    throw GroupError(rank, "world '" + name_ + "' was not made: " + rank_name(rank) + " of the " +
                               (is_world ? "world" : "process set") +
                               " that its ranks are in did not come within RONDE_INIT_TIMEOUT_S");
  }

  /// Starts a message of these bytes to or from a member. It times out after `until`.
  Message start(Collective kind, std::size_t member, std::string bytes,
                Clock::time_point until) const {
    Message message;
    message.bytes = std::make_shared<std::string>(std::move(bytes));
    Request request;
    request.kind = kind;
    request.set = members_.of;
    request.peer = members_.ranks.at(member);
    request.tag = tag_;
    request.dtype = DataType::U8;
    request.shape = {std::ssize(*message.bytes)};
    void* const data = message.bytes->data();
    request.input = kind == Collective::Send ? data : nullptr;
    request.output = kind == Collective::Recv ? data : nullptr;
    request.timeout = until + kPatience - Clock::now();
    request.keep_alive = message.bytes;
    message.work = submit(std::move(request));
    return message;
  }

  const RanksOfSet members_;
  const std::size_t own_;
  const std::string name_;
  const std::chrono::nanoseconds timeout_;
  const Clock::time_point deadline_;
  const std::int64_t tag_;
};

/// Lets the ranks of a set, each of which calls it, meet by messages of the world of the set.
/// `name` is that of the world that they make. Throws UsageError unless they are different ranks of
/// the set, this one among them.
MetRanks meet_within(const RanksOfSet& ranks, const std::string& name,
                     std::chrono::nanoseconds timeout) {
  const int size = static_cast<int>(ranks_of(ranks.of).size());
  const std::optional<int> rank = rank_in(ranks.of);
  const std::vector<int>& members = ranks.ranks;
  const std::set<int> distinct(members.begin(), members.end());
  const std::string who = "ronde::World '" + name + "': ";
  if (distinct.empty() || distinct.size() != members.size() || *distinct.begin() < 0 ||
      *distinct.rbegin() >= size) {
    throw UsageError(who + "its ranks have to be different ones of 0 to " +
                     std::to_string(size - 1) + ", not " + list_ranks(members));
  }
  const auto own = rank ? std::ranges::find(members, *rank) : members.end();
  if (own == members.end()) {
    throw UsageError(who + "this rank is not among its ranks, " + list_ranks(members) +
                     ": they alone make it");
  }
  const auto number = static_cast<std::size_t>(own - members.begin());
  return {.rank = static_cast<int>(number),
          .size = static_cast<int>(members.size()),
          .exchange = WorldExchange(ranks, number, name, timeout)};
}

HostedRuntime& checked(const std::shared_ptr<HostedRuntime>& runtime) {
  if (runtime) return *runtime;
  throw UsageError("a ronde::World was used that had been moved from");
}

HostedRuntime::Use use(const std::shared_ptr<HostedRuntime>& runtime, std::string_view function) {
  return HostedRuntime::Use(checked(runtime), function, runtime);
}

}  // namespace

World::World(std::string name, const InitOptions& options)
    : runtime_(Process::instance().make_world(name, {.init = options})) {}

World::World(std::string name, ProcessSet of, const std::vector<int>& ranks)
    : runtime_(Process::instance().make_world(name, {.meet = [&](auto timeout) {
                                                return meet_within({of, ranks}, name, timeout);
                                              }})) {}

World::~World() {
  end();
}

World::World(World&& other) noexcept = default;

World& World::operator=(World&& other) noexcept {
  if (this == &other) return *this;
  end();
  runtime_ = std::move(other.runtime_);
  return *this;
}

void World::end() noexcept {
  if (!runtime_) return;
  runtime_->leave("its World was destroyed without a shutdown()");
  Process::instance().forget(*runtime_);
}

const std::string& World::name() const noexcept {
  static const std::string none;
  return runtime_ ? runtime_->name() : none;
}

ProcessSet World::set() const noexcept {
  constexpr ProcessSet kNone{.world = std::numeric_limits<std::uint32_t>::max()};
  return runtime_ ? runtime_->set() : kNone;
}

int World::rank() const {
  return use(runtime_, "World::rank()")->topology().rank;
}

int World::size() const {
  return use(runtime_, "World::size()")->topology().size;
}

const Topology& World::topology() const {
  return use(runtime_, "World::topology()")->topology();
}

Runtime& World::runtime() const {
  return *use(runtime_, "World::runtime()");
}

ProcessSet World::add_process_set(const std::vector<int>& ranks) const {
  return use(runtime_, "World::add_process_set()")->add_process_set(ranks);
}

ProcessSet World::create_process_set(const std::vector<int>& ranks, const std::string& tag) const {
  return use(runtime_, "World::create_process_set()")->create_process_set(ranks, tag);
}

void World::shutdown(std::optional<std::chrono::nanoseconds> limit) {
  HostedRuntime& runtime = checked(runtime_);
  const auto forget = [&] {  // unless it was refused, or another thread is in it
    if (!runtime.is_there()) Process::instance().forget(runtime);
  };
  try {
    runtime.shutdown(limit);
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

}  // namespace ronde
