// SPDX-License-Identifier: Apache-2.0
// Send and recv end to end: ranks as threads, each with a Runtime.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <random>
#include <string>
#include <vector>

#include "ronde/error.h"
#include "tests/unit/faulty_group.h"
#include "tests/unit/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

// The hosts of three ranks: a leader speaks for others, or not.
const std::vector<int> kOneHost = {0, 0, 0};
const std::vector<int> kLeaderAndOne = {0, 1, 1};
const std::vector<int> kTwoRanks = {0, 0};
const std::vector<int> kFourOnOne = {0, 0, 0, 0};
const std::vector<int> kTwoLeaders = {0, 0, 1, 1};

void run_on(const std::vector<int>& host_of,
            const std::function<void(int rank, Runtime& runtime)>& body,
            const Config& config = test_config()) {
  const inproc::Group group(host_of);
  run_ranks(static_cast<int>(host_of.size()), [&](int rank) {
    Runtime runtime(options_of(group, rank, config));
    body(rank, runtime);
    runtime.shutdown();
  });
}

/// What rank `from` sends under `number`.
float value_of(int from, int number) {
  return static_cast<float>(1000 * from + number);
}

/// Any bytes, another pattern for each rank.
Elements pattern(DataType dtype, std::size_t count, int rank) {
  Elements elements(dtype, count);
  auto* bytes = static_cast<std::uint8_t*>(elements.data());
  for (std::size_t i = 0; i < elements.bytes(); ++i) {
    bytes[i] = static_cast<std::uint8_t>((i * 31 + i / 251 + static_cast<std::size_t>(rank) * 97));
  }
  return elements;
}

void pass_around(int rank, int ranks, Runtime& runtime, DataType dtype, std::size_t count) {
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const Elements mine = pattern(dtype, count, rank);
  Elements theirs(dtype, count);
  Request send;
  send.kind = Collective::Send;
  send.dtype = dtype;
  send.shape = {static_cast<std::int64_t>(count)};
  send.input = count > 0 ? mine.data() : nullptr;
  send.peer = next;
  Request receive = send;
  receive.kind = Collective::Recv;
  receive.input = nullptr;
  receive.output = count > 0 ? theirs.data() : nullptr;
  receive.shape = {1, static_cast<std::int64_t>(count), 1};  // the count is the same
  receive.peer = previous;
  const Work received = runtime.submit(receive);
  runtime.submit(send).wait();
  received.wait();
  check(theirs == pattern(dtype, count, previous),
        std::to_string(count) + " elements of " + std::string(to_string(dtype)));
  check(received.source() == previous, "where it came from");
}

}  // namespace

TEST_CASE("messages of every type arrive bit for bit, in chunks where they are large") {
  Config config = test_config();
  config.fusion_bytes = 256;  // and so the fusion buffer
  const std::vector<int> hosts = GENERATE(kOneHost, kLeaderAndOne, kTwoRanks);
  const int ranks = static_cast<int>(hosts.size());
  run_on(
      hosts,
      [ranks](int rank, Runtime& runtime) {
        for (const DataType dtype : kAllDataTypes) {
          for (const std::size_t count : {0, 1, 31, 32, 33, 5000}) {
            pass_around(rank, ranks, runtime, dtype, count);
          }
        }
        const std::uint64_t moved = kAllDataTypes.size() * 5 * 2;
        check(counter_of(runtime, "execution", "tensors") == moved, "both ends of each");
        check(counter_of(runtime, "execution", "skipped_tensors") == kAllDataTypes.size() * 2,
              "what has no elements is matched and moves nothing");
        if (rank == 0) {
          check(counter_of(runtime, "negotiation", "messages") ==
                    kAllDataTypes.size() * 6 * static_cast<std::uint64_t>(ranks),
                "every message was matched once");
        }
        check_goes_on(runtime);
      },
      config);
}

TEST_CASE("two ranks send to each other at once, and in any order of waiting") {
  run_group(2, [](int rank, Runtime& runtime) {
    const int peer = 1 - rank;
    for (int step = 0; step < 20; ++step) {
      const std::vector<float> mine(100, value_of(rank, step));
      std::vector<float> theirs(100);
      const bool send_first = (step + rank) % 2 == 0;
      Work sent;
      if (send_first) sent = runtime.submit(send_request(mine, peer));
      const Work received = runtime.submit(recv_request(theirs, peer));
      if (!send_first) sent = runtime.submit(send_request(mine, peer));
      (step % 3 == 0 ? sent : received).wait();
      (step % 3 == 0 ? received : sent).wait();
      check(theirs.front() == value_of(peer, step) && theirs.back() == theirs.front(),
            "the peer's of this step");
      check(sent.source() == -1, "a send comes from nowhere");
    }
  });
}

TEST_CASE("tags are received in any order, and messages of one tag do not overtake each other") {
  constexpr int kTags = 12;
  run_on(GENERATE(kOneHost, kLeaderAndOne), [](int rank, Runtime& runtime) {
    if (rank == 0) {
      std::vector<std::vector<float>> values;
      for (int i = 0; i < 2 * kTags; ++i) values.push_back({value_of(0, i)});
      std::vector<Work> works;
      for (int i = 0; i < 2 * kTags; ++i) {
        works.push_back(
            runtime.submit(send_request(values[static_cast<std::size_t>(i)], 2, i % kTags)));
      }
      for (const Work& work : works) work.wait();
    } else if (rank == 2) {
      for (int tag = kTags; tag-- > 0;) {
        for (const int number : {tag, tag + kTags}) {
          std::vector<float> value(1);
          runtime.submit(recv_request(value, 0, tag)).wait();
          check(value[0] == value_of(0, number), "message " + std::to_string(number));
        }
      }
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a recv from any rank takes from all, each rank's in order, and tells from whom") {
  constexpr int kEach = 10;
  run_on(GENERATE(kOneHost, kLeaderAndOne, kTwoLeaders), [](int rank, Runtime& runtime) {
    const int size = runtime.topology().size;
    if (rank != 1) {
      for (int i = 0; i < kEach; ++i) {
        const std::vector<float> value = {value_of(rank, i)};
        runtime.submit(send_request(value, 1, 3)).wait();
      }
      return check_goes_on(runtime);
    }
    std::vector<int> next(static_cast<std::size_t>(size), 0);
    for (int i = 0; i < kEach * (size - 1); ++i) {
      std::vector<float> value(1);
      const Work work = runtime.submit(recv_request(value, kAnyRank, 3));
      work.wait();
      check(work.source() >= 0 && work.source() < size && work.source() != 1, "a source");
      int& number = next[static_cast<std::size_t>(work.source())];
      check(value[0] == value_of(work.source(), number++), "the next one of that rank");
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a source is told of a recv that has succeeded only") {
  std::latch pending(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(1, 1.0F);
    check(Work().source() == -1, "of nothing");
    if (rank == 1) {
      const Work work = runtime.submit(recv_request(values, 0));
      check(text_of<UsageError>([&] { static_cast<void>(work.source()); }) ==
                "recv from rank 0 (tag 0): source() was called while it is pending; wait() first",
            "pending");
      pending.count_down();
      work.wait();
      check(work.source() == 0, "done");
    } else {
      pending.wait();
      runtime.submit(send_request(values, 1)).wait();
    }
    const Work sum = runtime.submit(sum_request(values, "x"));
    sum.wait();
    check(sum.source() == -1, "an allreduce has none");
    std::vector<float> more(2);
    const Work bad = runtime.submit(rank == 0 ? send_request(values, 1) : recv_request(more, 0));
    check_contains(usage_error_of(bad), "differs");
    check(text_of<UsageError>([&] { static_cast<void>(bad.source()); }) == usage_error_of(bad),
          "the error");
  });
}

TEST_CASE("ends of a message that differ fail both ranks with one text") {
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& request) { request.shape = {3}; },
      [](Request& request) { request.dtype = DataType::I32; },
      [](Request& request) {
        request.device = {DeviceKind::Cuda, 0};
      }};
  for (const std::function<void(Request&)>& change : changes) {
    std::vector<std::string> texts(2);
    run_group(3, [&](int rank, Runtime& runtime) {
      std::vector<float> values(4, 1.0F);
      if (rank > 0) {
        Request request = rank == 1 ? send_request(values, 2, 4) : recv_request(values, 1, 4);
        if (rank == 2) change(request);
        texts[static_cast<std::size_t>(rank - 1)] = usage_error_of(runtime.submit(request));
        check(values[0] == 1.0F, "nothing was done");
      }
      check_goes_on(runtime);
    });
    CHECK_THAT(texts[0], Catch::Contains("the message from rank 1 to rank 2 (tag 4)"));
    CHECK_THAT(texts[0], Catch::Contains("rank 2: "));
    CHECK(texts[0] == texts[1]);
  }
}

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

TEST_CASE("a stalled message is reported with the rank that it waits for") {
  const inproc::Group group(GENERATE(kOneHost, kLeaderAndOne));
  std::latch reported(3);
  std::vector<StalledOperation> seen(3);
  const int peer = GENERATE(2, kAnyRank);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.02;
    RuntimeOptions options = options_of(group, rank, config);
    bool told = false;
    options.on_stall = [&](const std::vector<StalledOperation>& stalled) {
      if (std::exchange(told, true)) return;
      seen[static_cast<std::size_t>(rank)] = stalled.at(0);
      reported.count_down();
    };
    Runtime runtime(std::move(options));
    std::vector<float> values(2, 1.0F);
    if (rank == 1) runtime.submit(recv_request(values, peer, 8)).wait();
    if (rank == 2) {
      reported.wait();
      runtime.submit(send_request(values, 1, 8)).wait();
    }
    runtime.shutdown();
  });
  for (const StalledOperation& stalled : seen) {
    CHECK(stalled.name.empty());
    CHECK(stalled.kind == Collective::Recv);
    CHECK(stalled.text == (peer == 2 ? "recv from rank 2 (tag 8)" : "recv from any rank (tag 8)"));
    CHECK(stalled.submitted_ranks == std::vector<int>{1});
    CHECK(stalled.missing_ranks == (peer == 2 ? std::vector<int>{2} : std::vector<int>{0, 2}));
    CHECK(stalled.waiting >= milliseconds(20));
  }
}

TEST_CASE("a message that stalls past the limit fails the group, naming who is missing") {
  std::vector<Death> deaths(3);
  const inproc::Group group(GENERATE(kOneHost, kLeaderAndOne));
  std::latch over(1);
  run_ranks(3, [&](int rank) {
    Config config = test_config();
    config.stall_warn_s = 0.0;
    config.stall_abort_s = 0.1;
    Runtime runtime(options_of(group, rank, config));
    std::vector<float> values(2, 1.0F);
    if (rank != 1) over.wait();
    deaths[static_cast<std::size_t>(rank)] =
        death_of([&] { runtime.submit(send_request(values, rank == 1 ? 2 : 1, 8)).wait(); });
    if (rank == 1) over.count_down();
  });
  for (const Death& death : deaths) {
    CHECK(death == deaths[0]);
    CHECK(death.rank == 2);
    CHECK_THAT(death.text, Catch::Contains("send to rank 2 (tag 8) has waited"));
    CHECK_THAT(death.text, Catch::Contains("for rank 2 (submitted by rank 1)"));
  }
}

TEST_CASE("a peer that shuts down while a message waits for it is named on all") {
  for (const int peer : {0, 1}) {
    const inproc::Group group(3);
    std::vector<Death> deaths(3);
    std::latch over(1);
    run_ranks(3, [&](int rank) {
      Runtime runtime(options_of(group, rank));
      std::vector<float> values(2, 1.0F);
      deaths[static_cast<std::size_t>(rank)] = death_of([&] {
        if (rank == peer) return runtime.shutdown();
        if (rank == 1 - peer) over.wait();
        runtime.submit(recv_request(values, peer, 8)).wait();
      });
      if (rank == 2) over.count_down();
    });
    for (const Death& death : deaths) CHECK(death == deaths[0]);
    CHECK(deaths[0].rank == peer);
    CHECK_THAT(deaths[0].text,
               Catch::Contains("rank " + std::to_string(peer) +
                               " called shutdown() while rank 2 still waited for recv from rank " +
                               std::to_string(peer) +
                               " (tag 8); every send needs a recv, and every recv a send"));
  }
}

TEST_CASE("a recv from any rank goes on while one other rank is left, and not longer") {
  const inproc::Group group(3);
  std::vector<Death> deaths(3);
  std::latch received(1);
  run_ranks(3, [&](int rank) {
    Runtime runtime(options_of(group, rank));
    std::vector<float> values(2, static_cast<float>(rank));
    deaths[static_cast<std::size_t>(rank)] = death_of([&] {
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

TEST_CASE("messages that both ranks have submitted end before a shutdown does") {
  run_on(GENERATE(kOneHost, kLeaderAndOne), [](int rank, Runtime& runtime) {
    std::vector<float> values(5000, static_cast<float>(rank));
    Work work;
    if (rank == 1) work = runtime.submit(send_request(values, 2));
    if (rank == 2) work = runtime.submit(recv_request(values, 1));
    runtime.shutdown();
    check(work.done(), "done by then");
    work.wait();
    check(rank != 2 || values[4999] == 1.0F, "the message");
  });
}

TEST_CASE("a rank that dies is named where a message waits for it, and where one is under way") {
  const bool under_way = GENERATE(false, true);
  FaultyGroup all(3);
  if (under_way) all.faults[1]->hold_starts();
  std::vector<Death> deaths(3);
  std::vector<std::unique_ptr<Runtime>> runtimes(3);
  run_ranks(3, [&](int rank) {
    auto& runtime = runtimes[static_cast<std::size_t>(rank)];
    runtime = std::make_unique<Runtime>(all.options(rank));
    std::vector<float> values(2, 1.0F);
    if (rank == 1) {
      Work work;
      if (under_way) {
        work = runtime->submit(send_request(values, 2));
        all.faults[1]->wait_begun(1);
      }
      all.group.kill(1);
      return;
    }
    deaths[static_cast<std::size_t>(rank)] = death_of(
        [&] { runtime->submit(rank == 2 ? recv_request(values, 1) : barrier_request()).wait(); });
  });
  for (const int rank : {0, 2}) {
    const Death& death = deaths[static_cast<std::size_t>(rank)];
    CHECK(death.rank == 1);
    CHECK_THAT(death.text, Catch::Contains("rank 1 was lost: it was killed"));
  }
}

TEST_CASE("messages and collectives in any order come to an end") {
  constexpr int kRanks = 4;
  constexpr int kOperations = 120;
  struct Operation {
    bool is_sum = false;
    int from = 0;
    int to = 0;
  };
  const std::vector<int> hosts = GENERATE(kTwoLeaders, kFourOnOne);
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int first, int last) {
      return std::uniform_int_distribution<int>(first, last)(random);
    };
    std::vector<Operation> program;
    for (int i = 0; i < kOperations; ++i) {
      const int from = pick(0, kRanks - 1);
      program.push_back({pick(0, 2) == 0, from, (from + pick(1, kRanks - 1)) % kRanks});
    }
    run_on(hosts, [&](int rank, Runtime& runtime) {
      std::mt19937 order(100 * seed + static_cast<unsigned>(rank));
      std::vector<std::vector<float>> values(kOperations, std::vector<float>(7));
      std::vector<Work> works(kOperations);
      std::vector<int> mine;
      for (int i = 0; i < kOperations; ++i) {
        const Operation& operation = program[static_cast<std::size_t>(i)];
        if (operation.is_sum || operation.from == rank || operation.to == rank) mine.push_back(i);
      }
      std::shuffle(mine.begin(), mine.end(), order);
      for (const int i : mine) {
        const auto index = static_cast<std::size_t>(i);
        const Operation& operation = program[index];
        const bool sends = operation.is_sum || operation.from == rank;
        if (sends) values[index].assign(7, value_of(operation.is_sum ? 0 : rank, i));
        const Request request = operation.is_sum
                                    ? sum_request(values[index], "sum " + std::to_string(i))
                                : sends ? send_request(values[index], operation.to, i)
                                        : recv_request(values[index], operation.from, i);
        works[index] = runtime.submit(request);
      }
      for (const int i : mine) {
        const auto index = static_cast<std::size_t>(i);
        const Operation& operation = program[index];
        works[index].wait();
        const float expected =
            operation.is_sum ? kRanks * value_of(0, i) : value_of(operation.from, i);
        check(values[index][6] == expected, "operation " + std::to_string(i));
      }
    });
  }
}

TEST_CASE("messages end a frozen schedule, and one that waits keeps ranks from freezing") {
  constexpr int kRanks = 3;
  const auto step = [](Runtime& runtime) {
    std::vector<float> values(3, 1.0F);
    runtime.submit(sum_request(values, "x")).wait();
    check(values[0] == static_cast<float>(kRanks), "the sum");
  };
  const auto freeze = [&](Runtime& runtime) {
    const std::uint64_t before = counter_of(runtime, "schedule", "thaws");
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (counter_of(runtime, "schedule", "freezes") == before) {
      check(std::chrono::steady_clock::now() < limit,
            "the ranks repeat themselves, so they freeze");
      step(runtime);
    }
  };
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    std::vector<float> value(1, static_cast<float>(rank));
    for (int round = 0; round < 3; ++round) {
      freeze(runtime);
      const int from = round % 2;
      // Rank 2 knows of the thaw only from the words.
      Work work;
      if (rank == from) work = runtime.submit(send_request(value, 1 - from, round));
      if (rank == 1 - from) work = runtime.submit(recv_request(value, from, round));
      step(runtime);
      work.wait();
      check(rank != 1 - from || value[0] == static_cast<float>(from), "the message");
      value[0] = static_cast<float>(rank);
    }
    check(counter_of(runtime, "schedule", "thaws") >= 2, "messages thawed it");
  });
  run_group(kRanks, [&](int rank, Runtime& runtime) {
    std::vector<float> value(1, static_cast<float>(rank));
    Work work;
    if (rank == 1) work = runtime.submit(recv_request(value, kAnyRank));
    for (int i = 0; i < 200; ++i) step(runtime);
    check(counter_of(runtime, "schedule", "freezes") == 0, "not while it waits");
    if (rank == 0) work = runtime.submit(send_request(value, 1));
    work.wait();
    check(rank == 2 || value[0] == 0.0F, "the message");
    freeze(runtime);
  });
}
