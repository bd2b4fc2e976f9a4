// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/membership.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

using ronde::tool::launch::Clock;
using ronde::tool::launch::Json;
using ronde::tool::launch::Membership;
using Slots = std::vector<int>;

/// A job whose processes are only slots, and what its launcher is told to do.
class Job {
 public:
  explicit Job(int slots, int replacements = 9, int min_ranks = 0)
      : membership_({.tell = [this](int slot, const Json& message) { tell(slot, message); },
                     .replace = [this](int slot) { replaced.push_back(slot); },
                     .kill = [this](int slot) { killed.push_back(slot); },
                     .lose_host = [](int) { FAIL("a host is lost"); },
                     .give_up = [this](const std::string& why) { given_up = why; },
                     .say = [](const std::string&) {}},
                    {slots, min_ranks, replacements}) {}

  void ask(int slot, int blames = -1, bool started = true) {
    const int number = last_[slot];
    membership_.take(slot, {{"ask",
                             {{"number", number},
                              {"started", number > 0 && started},
                              {"blames", blames},
                              {"min_ranks", 1},
                              {"start_s", 60},
                              {"stall_s", stall_s}}}});
  }
  void ask_all(const Slots& slots, int blames = -1) {
    for (const int slot : slots) ask(slot, blames);
  }
  bool end(int slot, Membership::End how = Membership::End::Failed, bool was_in_group = true) {
    last_[slot] = 0;
    return membership_.end(slot, how, was_in_group);
  }
  Membership& operator*() noexcept { return membership_; }

  Slots replaced, killed, members, told_to_grow;
  std::set<int> told_void;
  double stall_s = 60;
  std::string given_up;
  bool goes_on = false;

 private:
  void tell(int slot, const Json& message) {
    if (message.contains("members")) {
      members = message.at("members").get<Slots>();
      goes_on = message.at("goes_on");
      last_[slot] = message.at("number");
    }
    if (message.contains("grow")) told_to_grow.push_back(slot);
    if (message.contains("void")) told_void.insert(slot);
  }

  Membership membership_;
  std::map<int, int> last_;
};

TEST_CASE("the next group begins once every process has asked or ended") {
  Job job(3);
  job.ask_all({0, 1});
  CHECK(job.members.empty());
  job.ask(2);
  CHECK(job.members == Slots{0, 1, 2});
  CHECK_FALSE(job.goes_on);
  CHECK(job.end(1));
  CHECK(job.replaced == Slots{1});
  CHECK(job.told_void == std::set<int>{0, 2});
  job.ask_all({0, 2}, 1);
  CHECK((*job).next_look() > Clock::now() + std::chrono::seconds(30));  // the new one is not blamed
  job.members.clear();
  job.ask(1);
  CHECK(job.members == Slots{0, 1, 2});
  CHECK_FALSE(job.goes_on);  // the state is not lost: 0 and 2 were there from the start
}

TEST_CASE("the state of a job whose ranks are all new is lost, if a group of it had started") {
  const bool had_started = GENERATE(false, true);
  Job job(2);
  job.ask_all({0, 1});
  for (const int slot : {0, 1}) CHECK(job.end(slot, Membership::End::Failed, had_started));
  job.ask_all({0, 1});
  CHECK(job.goes_on == had_started);
  CHECK(job.end(0));
  job.ask(1, 0);
  job.ask(0);
  CHECK(job.goes_on == had_started);  // 1 is there from the start of the job, or came later
}

TEST_CASE("a job of which no replacement could go on ends with the first rank, and says why") {
  Job job(2);
  job.ask_all({0, 1});
  for (const int slot : {0, 1}) CHECK(job.end(slot));
  job.ask_all({0, 1});
  CHECK(job.goes_on);
  job.members.clear();
  for (const int slot : {0, 1}) (*job).take(slot, {{"fail", "the state is lost"}});
  CHECK(job.given_up.empty());
  job.ask(1);
  CHECK_FALSE(job.end(0));
  CHECK(job.given_up == "the state is lost");
  CHECK(job.replaced == Slots{0, 1});
  CHECK(job.members.empty());
}

TEST_CASE("a rank that is stopped while others run has RONDE_STALL_ABORT_S to resume") {
  Job job(2);
  (*job).stop(0, true);  // it has not come yet
  job.ask_all({0, 1});
  const auto never = Clock::time_point::max();
  CHECK((*job).next_look() == never);
  (*job).stop(1, true);
  const auto first = (*job).next_look();
  CHECK(first <= Clock::now() + std::chrono::seconds(60));
  (*job).stop(0, true);
  CHECK((*job).next_look() == never);  // nobody waits
  (*job).stop(0, false);
  CHECK((*job).next_look() > first);  // while all are stopped no time passes
  CHECK((*job).next_look() < never);
  (*job).stop(1, false);
  CHECK((*job).next_look() == never);
}

TEST_CASE("a rank that is stopped for longer is killed, though no other rank has noticed yet") {
  Job job(2);
  job.stall_s = 0.001;
  job.ask_all({0, 1});
  (*job).stop(1, true);
  while (job.killed.empty()) (*job).look();
  CHECK(job.killed == Slots{1});
  CHECK(job.end(1));
  job.members.clear();
  job.ask_all({0, 1});
  CHECK(job.members == Slots{0, 1});
  CHECK((*job).next_look() == Clock::time_point::max());  // the new one is not stopped
}

TEST_CASE("a job goes on with fewer ranks, and gives up below the least") {
  Job job(3, 0, 2);
  job.ask_all({0, 1, 2});
  CHECK_FALSE(job.end(0));
  job.ask_all({1, 2}, 0);
  CHECK(job.members == Slots{1, 2});
  CHECK_FALSE(job.end(2));
  job.ask(1, 2);
  CHECK(job.given_up == "1 ranks are left, and the job needs 2");
}

TEST_CASE("new processes do not begin a job again that is done") {
  Job job(2);
  job.ask_all({0, 1});
  CHECK(job.end(1));
  job.ask(0, 1);
  job.end(0, Membership::End::Done);
  job.members.clear();
  job.ask(1);
  CHECK(job.members.empty());
  CHECK(job.killed == Slots{1});
}

TEST_CASE("a rank that leaves is not awaited, and not replaced") {
  Job job(3);
  job.ask_all({0, 1, 2});
  (*job).take(1, {{"leave", true}});
  job.ask_all({0, 2}, 1);
  CHECK(job.members == Slots{0, 2});
  CHECK_FALSE(job.end(1));
  CHECK(job.replaced.empty());
  CHECK(job.killed.empty());
}

TEST_CASE("the rank that ends a group for others to join is not blamed") {
  Job job(3, 0);
  job.ask_all({0, 1, 2});
  job.end(2, Membership::End::HostLost);
  job.ask_all({0, 1}, 2);
  (*job).fill(2);
  job.ask(2);
  CHECK(job.told_to_grow == Slots{0});
  job.ask(1, 0);
  CHECK((*job).next_look() > Clock::now() + std::chrono::seconds(30));
  job.ask(0);
  CHECK(job.members == Slots{0, 1, 2});
  CHECK(job.killed.empty());
}

TEST_CASE("where a link is cut, the larger side goes on, of equal ones that of the lowest slot") {
  Job job(4);
  job.ask_all({0, 1, 2, 3});
  job.members.clear();
  job.ask_all({0, 1}, 2);
  job.ask_all({2, 3}, 0);
  CHECK(job.killed == Slots{2, 3});
  CHECK((*job).next_look() <= Clock::now() + std::chrono::seconds(30));  // then its host is lost
  CHECK(job.members.empty());
  CHECK_FALSE(job.end(2));
  CHECK_FALSE(job.end(3));
  CHECK(job.members == Slots{0, 1});
}

TEST_CASE("two ranks that die at once are no cut link") {
  Job job(4);
  job.ask_all({0, 1, 2, 3});
  job.end(0);
  job.end(2);
  job.ask(1, 0);
  job.ask(3, 2);
  job.ask_all({0, 2});
  CHECK(job.killed.empty());
  CHECK(job.members == Slots{0, 1, 2, 3});
}

TEST_CASE("a rank that the others cannot reach in two starts is left out") {
  Job job(3, 0);
  job.ask_all({0, 1, 2});
  for (int start = 0; start < 2; ++start) {
    job.ask(0, 2, false);
    job.ask(1, 2, false);
    job.ask(2, -1, false);
  }
  CHECK(job.killed == Slots{2});
  job.end(2);
  CHECK(job.members == Slots{0, 1});
}

}  // namespace
