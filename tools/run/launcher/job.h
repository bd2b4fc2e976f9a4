// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/run/launcher/link.h"
#include "tools/run/launcher/membership.h"
#include "tools/run/launcher/output.h"

namespace ronde::tool::launch {

/// The end of a rank, as the launcher sees it.
struct RankEnd : Ended {
  std::string host = {};
  bool was_told = false;  ///< this launcher had signalled it to end
  bool was_lost = false;  ///< an elastic job has gone on without it
  int order = 0;          ///< in which the launcher received the ends

  /// Whether it ended by itself and without an error, as far as the launcher knows.
  bool is_well() const;
  std::string text() const;
};

/// The end of a start of all ranks.
struct JobEnd {
  std::vector<std::string> problems;   ///< it has not come to a start
  std::map<int, RankEnd> ranks;        ///< by number
  std::set<std::string> failed_hosts;  ///< to be blamed for it
  std::set<std::string> answered;      ///< hosts that were there
  bool lacks_room = false;             ///< too few of them for a start
  int culprit = -1;                    ///< the rank that has failed first
  int signal = 0;                      ///< that ended the launcher
  bool was_elastic = false;            ///< it has gone on without a rank, or with another one
  bool grows = false;                  ///< it was ended as there is room for more ranks
  Clock::duration lasted{};

  bool is_well() const { return problems.empty() && culprit < 0 && signal == 0; }
  int exit_code() const;
};

/// The first rank that has failed, -1 if none has: the one that most of the others name, else the
/// first that ended in a way in which none does that has heard of another's failure.
int find_culprit(const std::map<int, RankEnd>& ranks);

/// The signals of the launcher.
///
/// Thread-safety: none.
class Signals {
 public:
  /// `poll` outlives this.
  explicit Signals(Poll& poll);

  /// The first that is to end the job; 0 if none has come.
  int ending() const noexcept { return ending_; }
  /// Called for each signal, with its count from 1 if it ends the job, else with 0.
  std::function<void(int number, int count)> on_signal;

 private:
  void read();

  const Fd signals_;
  int ending_ = 0;
  int count_ = 0;
  Clock::time_point first_;
};

/// One start of all ranks. Note [Launcher and agents].
///
/// Thread-safety: none.
class Job {
 public:
  Job(Poll& poll, Signals& signals, Output& output, const Options& options, Variables variables,
      int restart);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Runs them to their end on as many of the hosts as answer, but `fewest` ranks or more.
  JobEnd run(const Hosts& hosts, int ranks, int fewest);

  /// Updates the hosts that exist now, for Options::grow_s.
  std::function<Hosts()> hosts_now;
  /// Whether a rank has ended, or was signalled to end.
  bool is_ending() const { return told_to_end_ || (!membership_ && !end_.ranks.empty()); }

 private:
  using Links = std::vector<std::unique_ptr<Link>>;

  static bool all(const Links& links, Link::State state);
  std::unique_ptr<Link> link_to(const Host& host, const Link::OnLost& on_lost,
                                const Link::OnError& on_error);
  void connect(const Hosts& hosts);
  bool place_ranks(int ranks, int fewest);
  bool prepare();
  void check_same_program();
  void start();
  void wait_for_ends();
  void start_on(Link& link);
  void look_for_hosts();
  void grow_if_they_answer();
  void fill_slots();
  void start_late(Link& link);
  void send_prepare(Link& link);
  void lose_unprepared();
  void tell_over(int rank);
  template <typename Done>
  void wait_until(Clock::time_point deadline, const Done& done);

  void on_event(Link& link, const Frame& frame);
  void on_lost(Link& link);
  void on_signal(int number, int count);
  void record_end(const Link& link, int rank, const Ended& how);
  bool is_replaced(RankEnd& end, int rank);
  Membership make_membership();
  Link& link_of(int rank);
  void end_ranks(int signal, double grace_s);
  void send_all(const Json& order);

  Poll& poll_;
  Signals& signals_;
  Output& output_;
  const Options& options_;
  const Variables variables_;
  const int restart_;
  int wanted_ = 0;
  int ranks_ = 0;
  bool is_running_ = false;
  Variables start_variables_;  ///< of all ranks
  bool told_to_end_ = false;
  bool starting_are_told_ = false;
  std::optional<Membership> membership_;                  ///< of an elastic job
  Clock::time_point end_at_ = Clock::time_point::max();   ///< survivors had their time
  Clock::time_point lose_at_ = Clock::time_point::max();  ///< agents have not ended their ranks
  Clock::time_point look_at_ = Clock::time_point::max();  ///< for hosts that have come
  Clock::time_point prepare_until_ = Clock::time_point::max();  ///< of hosts that have come
  Links links_;
  Links probes_;                ///< to hosts that the job is not on
  int room_ = 0;                ///< for ranks, on the hosts that are listed and answer
  std::set<std::string> told_;  ///< why hosts cannot be asked
  JobEnd end_;
};

}  // namespace ronde::tool::launch
