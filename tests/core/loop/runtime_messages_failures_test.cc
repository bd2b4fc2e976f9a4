// SPDX-License-Identifier: Apache-2.0
// Sends and recvs that are refused, that wait in vain, and that end with a rank.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/messages_of_ranks.h"
#include "tests/support/ranks/results_of_ranks.h"

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

TEST_CASE("what this rank alone can see of a message is refused at once") {
  struct Row {
    Collective kind;
    std::function<void(Request&)> change;
    std::string text;
  };
  const Collective send = Collective::Send;
  const Collective recv = Collective::Recv;
  const std::vector<Row> rows = {
      {send, [](Request& r) { r.peer = 0; }, "send: peer 0 is this rank itself"},
      {recv, [](Request& r) { r.peer = 0; }, "recv: peer 0 is this rank itself"},
      {send, [](Request& r) { r.peer = 2; },
       "send: peer 2 is out of range: there are ranks 0 to 1"},
      {send, [](Request& r) { r.peer = kAnyRank; }, "send: peer -1 is out of range"},
      {recv, [](Request& r) { r.peer = -2; },
       "recv: peer -2 is out of range: there are ranks 0 to 1, or kAnyRank"},
      {recv, [](Request& r) { r.tag = -1; }, "recv: tag -1 is negative"},
      {send, [](Request& r) { r.name = "x"; }, "send 'x': messages have no name"},
      {send, [](Request& r) { r.name = "\x01x"; },
       "send: a name cannot begin with NUL, nor with a byte 1"},
      {send, [](Request& r) { r.input = nullptr; }, "send: input is null"},
      {recv, [](Request& r) { r.output = nullptr; }, "recv: output is null"},
      {recv, [](Request& r) { r.shape = {-1}; }, "recv: shape [-1] has a negative dimension"},
      {send, [](Request& r) { r.contributes = false; }, "send: only a reduction can go without"},
      {send, [](Request& r) { r.splits = {1}; }, "send: only an alltoall has splits"},
      {Collective::Allreduce, [](Request& r) { r.name = "\x01x"; },
       "allreduce: a name cannot begin"}};
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    if (rank == 0) {
      for (const Row& row : rows) {
        Request request = recv_request(values, 1);
        request.input = values.data();
        request.kind = row.kind;
        row.change(request);
        check_contains(text_of<UsageError>([&] { runtime.submit(request); }), row.text);
      }
    }
    check_goes_on(runtime);
  });
  run_group(1, [&](int, Runtime& runtime) {
    std::vector<float> values(2, 1.0F);
    check_contains(text_of<UsageError>([&] { runtime.submit(recv_request(values, kAnyRank)); }),
                   "there is no other rank");
  });
}

TEST_CASE("a message whose timeout passes fails alone, and its counterpart goes on waiting") {
  const bool sends = GENERATE(true, false);
  std::latch expired(1);
  run_on(GENERATE(kOneHost, kLeaderAndOne), [&](int rank, Runtime& runtime) {
    std::vector<float> early(2, 1.0F);
    std::vector<float> late(2, 2.0F);
    const auto mine = [&](std::vector<float>& values) {
      const bool is_sender = (rank == 2) == sends;
      return is_sender ? send_request(values, 3 - rank, 6) : recv_request(values, 3 - rank, 6);
    };
    if (rank == 2) {
      Request request = mine(early);
      request.timeout = milliseconds(20);
      const std::string text = usage_error_of(runtime.submit(request));
      check_contains(text, sends ? "send to rank 1 (tag 6) timed out on rank 2: after "
                                 : "recv from rank 1 (tag 6) timed out on rank 2: after ");
      check_contains(text, "that fits had been submitted by rank 1");
      check(early[0] == 1.0F, "untouched");
      expired.count_down();
      runtime.submit(mine(late)).wait();
    } else if (rank == 1) {
      expired.wait();
      runtime.submit(mine(late)).wait();
    }
    check(rank == 0 || late[0] == 2.0F, "the later one met its like");
    check_goes_on(runtime);
  });
}

TEST_CASE("a peer that shuts down while a message waits for it is named on all") {
  for (const int peer : {0, 1}) {
    const inproc::Group group(3);
    std::latch over(1);
    const auto deaths = on_each_rank(3, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      std::vector<float> values(2, 1.0F);
      const Death death = death_of([&] {
        if (rank == peer) return runtime.shutdown();
        if (rank == 1 - peer) over.wait();
        runtime.submit(recv_request(values, peer, 8)).wait();
      });
      if (rank == 2) over.count_down();
      return death;
    });
    const std::string who = "rank " + std::to_string(peer);
    check_same_death(deaths, peer,
                     {who + " called shutdown() while rank 2 still waited for recv from " + who +
                      " (tag 8); every send needs a recv, and every recv a send"});
  }
}

TEST_CASE("a recv from any rank goes on while one other rank is left, and not longer") {
  const inproc::Group group(3);
  std::latch received(1);
  const auto deaths = on_each_rank(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::vector<float> values(2, static_cast<float>(rank));
    return death_of([&] {
      if (rank == 0) {
        const Work work = runtime.submit(recv_request(values, kAnyRank));
        work.wait();
        check(work.source() == 2 && values[1] == 2.0F, "from the one that is left");
        received.count_down();
        runtime.submit(recv_request(values, kAnyRank)).wait();
      }
      if (rank == 2) {
        runtime.submit(send_request(values, 0)).wait();
        received.wait();
      }
      runtime.shutdown();
    });
  });
  for (const Death& death : deaths) CHECK(death == deaths[0]);
  CHECK_THAT(deaths[0].text, Catch::Contains("ranks 1,2 called shutdown() while rank 0 still "
                                             "waited for recv from any rank (tag 0)"));
}
