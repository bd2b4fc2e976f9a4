// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/job.h"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "observe/base/system_sampler.h"
#include "observe/live/run_board.h"
#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

constexpr Clock::duration kPreparationTime = std::chrono::seconds(60);
constexpr Clock::duration kObeyTime = std::chrono::seconds(10);
constexpr double kLastGrace_s = 5;
constexpr Clock::duration kLongWait = std::chrono::hours(1);
// Where a cluster or `timeout` signals a launcher and its processes, they may get it twice.
constexpr Clock::duration kRepeat = std::chrono::seconds(1);

std::string master_address(const std::vector<Link*>& links) {
  const std::string& first = links.front()->host().name;
  if (!is_this_host(first)) return first.substr(first.find('@') + 1);  // without its user
  if (links.size() == 1) return "127.0.0.1";
  return first == "localhost" || first == "127.0.0.1" ? host_name() : first;
}

}  // namespace

Signals::Signals(Poll& poll)
    : signals_(open_signals({SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2})) {
  poll.add(signals_.get(), POLLIN, [this] { read(); });
}

void Signals::read() {
  for (const int number : read_signals(signals_)) {
    const bool ends = number == SIGHUP || number == SIGINT || number == SIGTERM;
    if (ends && count_ == 0) {
      ending_ = number;
      first_ = Clock::now();
    } else if (number == SIGTERM && Clock::now() - first_ < kRepeat) {
      continue;
    }
    if (ends) ++count_;
    if (on_signal) on_signal(number, ends ? count_ : 0);
  }
}

bool RankEnd::is_well() const {
  const bool is_over = state == RunBoard::kUnknown || state == RunBoard::kShutDown;
  return problem.empty() && exit_code == 0 && signal == 0 && is_over;
}

std::string RankEnd::text() const {
  if (!problem.empty()) return problem;
  std::string text = status_text(exit_code, signal);
  if (signal == SIGKILL && !was_told) text += ", by a user, or by the system for want of memory";
  if (signal != 0 && was_told) text += ", told to end by this launcher";
  if (signal == 0 && exit_code == 0 && !is_well()) text += ", but without ronde::shutdown()";
  return text;
}

int JobEnd::exit_code() const {
  if (signal != 0) return 128 + signal;
  if (is_well()) return 0;
  const auto found = ranks.find(culprit);
  if (found == ranks.end()) return 1;
  const RankEnd& rank = found->second;
  return rank.signal != 0 ? 128 + rank.signal : std::max(rank.exit_code, 1);
}

int find_culprit(const std::map<int, RankEnd>& ranks) {
  std::map<int, int> blamed;
  bool has_group = false;
  for (const auto& [number, end] : ranks) {
    has_group = has_group || end.state != RunBoard::kUnknown;
    if (ranks.contains(end.failed_rank)) ++blamed[end.failed_rank];
  }
  const auto most =
      std::ranges::max_element(blamed, {}, [](const auto& row) { return row.second; });
  int culprit = -1;
  std::pair<int, int> best{};
  for (const auto& [number, end] : ranks) {
    if (end.is_well() || end.was_lost) continue;
    // Ranks that learn of another's failure leave, or end with a code.
    const bool is_follower =
        end.was_told || (end.problem.empty() && end.signal == 0 && end.exit_code != 0);
    const std::pair<int, int> key{is_follower ? 1 : 0, end.order};
    if (culprit >= 0 && key >= best) continue;
    culprit = number;
    best = key;
  }
  if (culprit < 0) return -1;
  if (most != blamed.end()) return most->first;
  // One that ended before it joined the others, although well, has failed them.
  for (const auto& [number, end] : ranks) {
    const bool never_joined = end.is_well() && end.state == RunBoard::kUnknown;
    if (has_group && never_joined && end.order < ranks.at(culprit).order) return number;
  }
  return culprit;
}

Job::Job(Poll& poll, Signals& signals, Output& output, const Options& options, Variables variables,
         int restart)
    : poll_(poll),
      signals_(signals),
      output_(output),
      options_(options),
      variables_(std::move(variables)),
      restart_(restart) {
  signals_.on_signal = [this](int number, int count) { on_signal(number, count); };
}

Job::~Job() {
  // Only output is left to write; its readers may have stopped reading.
  signals_.on_signal = [&output = output_](int, int count) {
    if (count > 1) output.drop();
  };
}

JobEnd Job::run(const Hosts& hosts, int ranks, int fewest) {
  const auto begun = Clock::now();
  wanted_ = ranks;
  connect(hosts);
  if (place_ranks(ranks, fewest) && prepare()) {
    start();
    if (ranks_ < ranks && options_.grow_s > 0) {
      look_at_ = Clock::now() + seconds_of(options_.grow_s);
    }
    wait_for_ends();
    output_.end_lines();
    if (membership_ && !membership_->is_done()) {
      for (auto& [rank, end] : end_.ranks) end.was_lost = false;  // nobody was left to go on
    }
    end_.culprit = find_culprit(end_.ranks);
    const auto found = end_.ranks.find(end_.culprit);
    if (found != end_.ranks.end()) end_.failed_hosts.insert(found->second.host);
  }
  probes_.clear();
  links_.clear();
  end_.signal = signals_.ending();
  end_.lasted = Clock::now() - begun;
  return std::move(end_);
}

template <typename Done>
void Job::wait_until(Clock::time_point deadline, const Done& done) {
  while (!done() && signals_.ending() == 0 && Clock::now() < deadline) poll_.wait(deadline);
}

bool Job::all(const Links& links, Link::State state) {
  return std::ranges::all_of(links, [state](const auto& link) {
    return link->state() == state || link->state() == Link::State::Lost;
  });
}

std::unique_ptr<Link> Job::link_to(const Host& host, const Link::OnLost& on_lost,
                                   const Link::OnError& on_error) {
  return std::make_unique<Link>(
      poll_, host, agent_command(host, options_),
      [this](Link& link, const Frame& frame) { on_event(link, frame); }, on_lost, on_error);
}

void Job::connect(const Hosts& hosts) {
  for (const Host& host : hosts) {
    const auto say = [this, name = host.name](const std::string& line) {
      output_.print("[" + name + "] " + line + "\n");
    };
    links_.push_back(link_to(
        host, [this](Link& link) { on_lost(link); }, say));
  }
  const auto deadline = Clock::now() + seconds_of(options_.connect_s);
  wait_until(deadline, [this] { return all(links_, Link::State::Ready); });
  if (signals_.ending() != 0) return;
  for (const auto& link : links_) {
    if (link->state() != Link::State::Connecting) continue;
    link->lose("host " + link->host().name + " has not answered within " +
               text_of(options_.connect_s) + " s (--connect-timeout)");
  }
}

/// Places the ranks on the hosts that have answered, in their order.
bool Job::place_ranks(int ranks, int fewest) {
  std::erase_if(links_, [](const auto& link) { return link->state() == Link::State::Lost; });
  if (signals_.ending() != 0) return false;
  for (const auto& link : links_) {
    end_.answered.insert(link->host().name);
    for (int i = 0; i < link->host().slots && ranks_ < ranks; ++i) link->ranks.push_back(ranks_++);
  }
  std::erase_if(links_, [](const auto& link) { return link->ranks.empty(); });
  end_.failed_hosts.clear();  // a host that does not answer costs a job nothing but its room
  if (ranks_ >= fewest) {
    for (const std::string& problem : std::exchange(end_.problems, {})) {
      output_.say(problem + "; the job starts without it");
    }
    return true;
  }
  end_.lacks_room = true;
  end_.problems.push_back("there is room for " + std::to_string(ranks_) + " of " +
                          std::to_string(fewest) + " ranks");
  return false;
}

void Job::send_prepare(Link& link) {
  const auto path = variables_.find("PATH");
  const std::string search_path = path == variables_.end() ? "/bin:/usr/bin" : path->second;
  link.send({{"order", "prepare"},
             {"folder", options_.folder},
             {"program", options_.command.front()},
             {"search_path", search_path},
             {"ranks", link.ranks.size()},
             {"size", ranks_},
             {"restart", restart_}});
}

void Job::lose_unprepared() {
  prepare_until_ = Clock::time_point::max();
  for (const auto& link : links_) {
    if (link->state() != Link::State::Ready) continue;
    link->lose("host " + link->host().name + " has not looked at itself within 60 s");
  }
}

bool Job::prepare() {
  for (const auto& link : links_) send_prepare(*link);
  wait_until(Clock::now() + kPreparationTime,
             [this] { return all(links_, Link::State::Prepared); });
  if (signals_.ending() != 0) return false;
  lose_unprepared();
  for (const auto& link : links_) {
    if (link->state() == Link::State::Lost) continue;
    for (const std::string& problem : link->findings.problems) {
      end_.problems.push_back("host " + link->host().name + ": " + problem);
      end_.failed_hosts.insert(link->host().name);
    }
    for (const std::string& warning : link->findings.warnings) {
      output_.say("warning: host " + link->host().name + ": " + warning);
    }
  }
  if (end_.problems.empty()) check_same_program();
  return end_.problems.empty();
}

void Job::check_same_program() {
  const Link& first = *links_.front();
  for (const auto& link : links_) {
    if (link->findings.program == first.findings.program) continue;
    output_.say("warning: " + options_.command.front() + " on host " + link->host().name +
                " is another file than on host " + first.host().name +
                ": copy the same program to all hosts");
  }
}

void Job::start() {
  output_.begin(restart_);
  is_running_ = true;
  if (options_.elastic) membership_.emplace(make_membership());
  std::vector<Link*> links;
  for (const auto& link : links_) links.push_back(link.get());
  Variables& variables = start_variables_ = variables_;
  variables["WORLD_SIZE"] = std::to_string(ranks_);
  variables["GROUP_WORLD_SIZE"] = std::to_string(links.size());
  variables["MASTER_ADDR"] = master_address(links);
  variables["MASTER_PORT"] = std::to_string(links.front()->findings.port);
  for (Link* const link : links) start_on(*link);
}

void Job::start_on(Link& link) {
  const auto is_it = [&link](const auto& other) { return other.get() == &link; };
  Variables variables = start_variables_;
  variables["GROUP_RANK"] = std::to_string(std::ranges::find_if(links_, is_it) - links_.begin());
  variables["LOCAL_WORLD_SIZE"] = std::to_string(link.ranks.size());
  link.send({{"order", "start"},
             {"words", options_.command},
             {"folder", options_.folder},
             {"variables", variables},
             {"ranks", link.ranks},
             {"bind", options_.bind},
             {"elastic", options_.elastic},
             {"grace_s", options_.grace_s}});
}

Link& Job::link_of(int rank) {
  return **std::ranges::find_if(links_, [rank](const auto& link) {
    return std::ranges::find(link->ranks, rank) != link->ranks.end();
  });
}

/// Builds what decides about the members of an elastic job.
Membership Job::make_membership() {
  const auto order = [this](const char* name, int slot, Json json = Json::object()) {
    json["order"] = name;
    json["rank"] = slot;
    link_of(slot).send(json);
  };
  Membership::Actions actions;
  actions.tell = [order](int slot, const Json& message) {
    order("tell", slot, {{"message", message}});
  };
  actions.replace = [order](int slot) { order("replace", slot); };
  actions.kill = [order](int slot) { order("kill", slot); };
  actions.lose_host = [this](int slot) {
    Link& link = link_of(slot);
    link.lose("host " + link.host().name + " does not end a rank that was killed");
  };
  actions.say = [this](const std::string& text) { output_.say(text); };
  actions.give_up = [this](const std::string& why) {
    if (told_to_end_) return;
    output_.say(why + ": the ranks are told of SIGTERM and have " + text_of(options_.grace_s) +
                " s (--grace) to leave");
    end_ranks(SIGTERM, options_.grace_s);
  };
  return {std::move(actions), {ranks_, options_.min_ranks, options_.max_restarts}};
}

void Job::wait_for_ends() {
  while (end_.ranks.size() < static_cast<std::size_t>(ranks_)) {
    const bool is_full = output_.is_full(told_to_end_);
    for (const auto& link : links_) {
      if (link->state() != Link::State::Lost) link->pause(is_full);
    }
    const auto look_at =
        membership_ && !told_to_end_ ? membership_->next_look() : Clock::time_point::max();
    poll_.wait(
        std::min({end_at_, lose_at_, look_at_, look_at, prepare_until_, Clock::now() + kLongWait}));
    if (Clock::now() >= prepare_until_) lose_unprepared();
    if (Clock::now() >= look_at && !told_to_end_) membership_->look();
    if (!probes_.empty()) {
      if (all(probes_, Link::State::Ready) || Clock::now() >= look_at_) grow_if_they_answer();
    } else if (Clock::now() >= look_at_) {
      look_for_hosts();
    }
    if (Clock::now() >= end_at_) {
      output_.say("ranks that are left have had " + text_of(options_.grace_s) +
                  " s (--grace) since the first failure: they are ended");
      end_ranks(SIGTERM, kLastGrace_s);
    }
    if (Clock::now() < lose_at_) continue;
    for (const auto& link : links_) {
      link->lose("host " + link->host().name + " does not answer: ranks may be left there");
    }
  }
}

/// Connects to the hosts that the job does not use, to learn whether they answer.
void Job::look_for_hosts() {
  look_at_ = Clock::time_point::max();
  if (is_ending()) return;
  room_ = 0;
  for (const Host& host : hosts_now()) {
    const auto is_it = [&](const auto& link) {
      return link->host().name == host.name && link->state() != Link::State::Lost;
    };
    if (std::ranges::any_of(links_, is_it)) {
      room_ += host.slots;
      continue;
    }
    try {
      probes_.push_back(link_to(
          host, [this](Link& link) { on_lost(link); }, [](const std::string&) {}));
    } catch (const Error& error) {
      if (told_.insert(error.what()).second) output_.say(error.what());
    }
  }
  look_at_ = Clock::now() + seconds_of(options_.connect_s);
  if (probes_.empty()) grow_if_they_answer();
}

void Job::grow_if_they_answer() {
  if (membership_) return fill_slots();
  for (const auto& probe : probes_) {
    if (probe->state() == Link::State::Ready) room_ += probe->host().slots;
  }
  probes_.clear();
  look_at_ = Clock::now() + seconds_of(options_.grow_s);
  const int ranks = std::min(room_, wanted_);
  if (ranks <= ranks_ || is_ending()) return;
  output_.say("hosts have come: the job is started again with " + std::to_string(ranks) +
              " ranks in place of " + std::to_string(ranks_) +
              ". These are told of SIGTERM and have " + text_of(options_.grace_s) +
              " s (--grace) to save and leave");
  end_.grows = true;
  look_at_ = Clock::time_point::max();
  end_ranks(SIGTERM, options_.grace_s);
}

/// Gives the empty slots of an elastic job to the hosts that have answered.
void Job::fill_slots() {
  std::vector<int> empty = membership_->empty_slots();
  std::erase_if(empty, [this](int slot) { return membership_->leaves(slot); });
  for (auto& probe : std::exchange(probes_, {})) {
    if (probe->state() != Link::State::Ready || empty.empty()) continue;
    for (int i = 0; i < probe->host().slots && !empty.empty(); ++i) {
      const int slot = empty.front();
      empty.erase(empty.begin());
      std::erase(link_of(slot).ranks, slot);
      probe->ranks.push_back(slot);
      end_.ranks.erase(slot);
      membership_->fill(slot);
    }
    output_.say("host " + probe->host().name + " has come, for slots of the job that are empty");
    send_prepare(*links_.emplace_back(std::move(probe)));
    prepare_until_ = Clock::now() + kPreparationTime;
  }
  look_at_ = empty.empty() ? Clock::time_point::max() : Clock::now() + seconds_of(options_.grow_s);
}

/// Starts ranks on a host that has come while the job was running.
void Job::start_late(Link& link) {
  for (const std::string& problem : link.findings.problems) {
    output_.say("host " + link.host().name + ": " + problem);
  }
  if (link.findings.problems.empty()) return start_on(link);
  link.lose("host " + link.host().name + " cannot start ranks");
}

void Job::on_event(Link& link, const Frame& frame) {
  const Json& event = frame.json;
  const std::string kind = event.value("event", "");
  if (kind == "prepared") {
    link.set_prepared(event);
    if (is_running_) start_late(link);
    return;
  }
  const int rank = event.value("rank", -1);
  if (!is_running_ || std::ranges::find(link.ranks, rank) == link.ranks.end()) return;
  if (kind == "output") return output_.take(rank, event.at("stream"), frame.bytes);
  if (kind == "ended") return record_end(link, rank, event.get<Ended>());
  if (kind == "stopped" && membership_ && !told_to_end_) {
    return membership_->stop(rank, event.at("is_stopped"));
  }
  if (kind == "said" && told_to_end_ && event.at("message").contains("ask")) return tell_over(rank);
  if (kind == "said" && membership_ && !told_to_end_) {
    membership_->take(rank, event.at("message"));
  }
}

void Job::on_lost(Link& link) {
  if (!is_running_) {
    end_.problems.push_back(link.problem());
    end_.failed_hosts.insert(link.host().name);
    return;
  }
  for (const int rank : link.ranks) {
    if (!end_.ranks.contains(rank)) record_end(link, rank, {.problem = link.problem()});
  }
}

/// The library tells survivors of a failure, which then leave by themselves. The launcher ends
/// ranks that are still in init.
void Job::record_end(const Link& link, int rank, const Ended& how) {
  const int order = static_cast<int>(end_.ranks.size());
  const bool was_starting = how.state == RunBoard::kStarting && how.signal == SIGTERM;
  const bool was_told = told_to_end_ || (starting_are_told_ && was_starting);
  RankEnd ended{how, link.host().name, was_told, false, order};
  if (membership_ && membership_->is_used()) ended.failed_rank = -1;  // a rank of one of the groups
  if (is_replaced(ended, rank)) return;
  const RankEnd& end = end_.ranks.insert_or_assign(rank, std::move(ended)).first->second;
  if (end.was_lost || end.is_well() || told_to_end_ || end_at_ != Clock::time_point::max()) return;
  end_at_ = Clock::now() + seconds_of(options_.grace_s);
  if (end_.ranks.size() == static_cast<std::size_t>(ranks_)) return;
  output_.say("rank " + std::to_string(rank) + " on " + end.host + ": " + end.text() +
              "; the others have " + text_of(options_.grace_s) +
              " s (--grace) to leave, those in init are told to end");
  starting_are_told_ = true;
  send_all({{"order", "end starting"}, {"signal", SIGTERM}});
}

/// An elastic job goes on where a rank ends before its work is done. Returns whether another one
/// takes its place.
bool Job::is_replaced(RankEnd& end, int rank) {
  if (!membership_ || !membership_->is_used() || told_to_end_) return false;
  end_.was_elastic = true;
  if (end.state == RunBoard::kShutDown && !membership_->asks(rank)) {
    return membership_->end(rank, Membership::End::Done, true);
  }
  end.was_lost = true;
  const bool leaves = membership_->leaves(rank) && end.exit_code == 0 && end.signal == 0;
  output_.say("rank " + std::to_string(rank) + " on " + end.host + ": " +
              (leaves ? "has left the job" : end.text()));
  const bool is_lost = link_of(rank).state() == Link::State::Lost;
  const bool was_in_group = is_lost || end.state >= RunBoard::kStarted;
  if (membership_->end(rank, is_lost ? Membership::End::HostLost : Membership::End::Failed,
                       was_in_group)) {
    return true;
  }
  if (options_.grow_s > 0 && probes_.empty()) {
    look_at_ = std::min(look_at_, Clock::now() + seconds_of(options_.grow_s));
  }
  return false;
}

void Job::on_signal(int number, int count) {
  if (count > 1) output_.drop();
  if (!is_running_) return;
  if (count == 0) return send_all({{"order", "signal"}, {"signal", number}});
  if (count > 1) return end_ranks(SIGKILL, 0);
  output_.say(std::string("the ranks are told of ") + strsignal(number) + " and have " +
              text_of(options_.grace_s) +
              " s (--grace) to leave; the same signal again kills them");
  end_ranks(number, options_.grace_s);
}

void Job::end_ranks(int signal, double grace_s) {
  told_to_end_ = true;
  end_at_ = Clock::time_point::max();
  lose_at_ = Clock::now() + seconds_of(grace_s) + kObeyTime;
  send_all({{"order", "end"}, {"signal", signal}, {"grace_s", grace_s}});
  if (!membership_) return;
  for (const int slot : membership_->asking_slots()) tell_over(slot);
}

/// Ends a rank that waits for the next group, which does not come.
void Job::tell_over(int rank) {
  link_of(rank).send({{"order", "tell"}, {"rank", rank}, {"message", {{"over", true}}}});
}

void Job::send_all(const Json& order) {
  for (const auto& link : links_) link->send(order);
}

}  // namespace ronde::tool::launch
