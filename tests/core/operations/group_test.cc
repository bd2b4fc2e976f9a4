// SPDX-License-Identifier: Apache-2.0
// Groups of operations that are agreed on together or not at all.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <set>

#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;

/// Sums in place under these names ("": without one), of values that begin as the rank plus one.
struct Group {
  Group(Runtime& runtime, const std::vector<std::string>& names, ProcessSet set = kGlobalSet,
        std::chrono::nanoseconds timeout = {}) {
    const auto value = static_cast<float>(runtime.topology().rank + 1);
    values.assign(names.size(), std::vector<float>(3, value));
    std::vector<Request> requests;
    for (std::size_t i = 0; i < names.size(); ++i) {
      requests.push_back(sum_request(values[i], names[i]));
      requests.back().set = set;
      requests.back().timeout = timeout;
    }
    works = runtime.submit_group(std::move(requests));
  }

  void check_sums(float expected) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i].wait();
      check(values[i] == std::vector<float>(3, expected), "the sums of the group");
    }
  }

  /// The text with which all of them were refused.
  std::string refusal() const {
    const std::string text = usage_error_of(works.at(0));
    for (const Work& work : works) check(usage_error_of(work) == text, "all have one error");
    return text;
  }

  std::vector<std::vector<float>> values;
  std::vector<Work> works;
};

float sum_of_all(Runtime& runtime) {
  const auto size = static_cast<float>(runtime.topology().size);
  return size * (size + 1) / 2;
}

}  // namespace

TEST_CASE(
    "a group is reduced, again and again by its slot, in whatever order its names are given") {
  Config config = test_config();
  config.freeze_after_steps = 0;
  for (const int size : {1, 2, 3}) {
    run_group(
        size,
        [](int rank, Runtime& runtime) {
          std::vector<std::string> names = {"b", "a", "c"};
          std::ranges::rotate(names, names.begin() + rank);
          for (int step = 0; step < 5; ++step) {
            Group(runtime, names).check_sums(sum_of_all(runtime));
            Group(runtime, {"", ""}).check_sums(sum_of_all(runtime));
            std::ranges::rotate(names, names.begin() + 1);
          }
          if (rank == 0) {
            check(counter_of(runtime, "negotiation", "agreed_by_slot") == 8,
                  "eight of ten by slot");
            check(counter_of(runtime, "execution", "buckets") == 10, "each is one bucket");
          }
        },
        config);
  }
}

TEST_CASE("one operation that cannot be refuses its whole group on every rank") {
  run_group(2, [](int rank, Runtime& runtime) {
    const auto refusal = [&](std::vector<Request> requests) {
      const std::vector<Work> works = runtime.submit_group(std::move(requests));
      const std::string text = usage_error_of(works[0]);
      for (const Work& work : works) check(usage_error_of(work) == text, "all have one error");
      return text;
    };
    std::vector<float> a(2, 1.0F), b(rank == 0 ? 2 : 3, 1.0F), c(2), d(2);
    for (int step = 0; step < 2; ++step) {
      const std::string text = refusal({sum_request(a, "a"), sum_request(b, "b")});
      check_contains(text,
                     "the group of 2 operations with 'a': allreduce 'b' differs between ranks");
      check_contains(text, "rank 0: allreduce f32 [2] sum on cpu");
      check_contains(text, "rank 1: allreduce f32 [3] sum on cpu");
      check(a == std::vector<float>(2, 1.0F), "nothing was done");
    }
    Request broadcast = sum_request(c, "c");
    broadcast.kind = Collective::Broadcast;
    broadcast.root = 7;
    check_contains(refusal({broadcast, sum_request(a, "d")}),
                   "broadcast 'c': root 7 is out of range");
    broadcast.name = "";
    check_contains(refusal({sum_request(a, ""), broadcast, sum_request(d, "d")}),
                   "with 'd': broadcast number 1 without a name: root 7 is out of range");
    const std::string text = refusal({sum_request(b, "")});
    check_contains(text, "operations, number 0 without a name: allreduce number 0 without a name");
    check_contains(text, "differs between ranks");
    check_contains(text, "give it a name if ranks call in different orders");
    Group(runtime, {"a", "b"}).check_sums(3.0F);
    check_goes_on(runtime);
  });
}

TEST_CASE("groups that differ between ranks are refused with all they touch, and nothing else") {
  struct Row {
    std::vector<std::vector<std::string>> first, second;  ///< groups of ranks 0 and 1, in order
  };
  const std::vector<Row> rows = {
      {{{"a", "b"}}, {{"a", "c"}}},                          // the same first name
      {{{"a", "b"}}, {{"b", "c"}}},                          // a common name
      {{{"a", "b"}}, {{"a"}, {"b"}}},                        // one group against two
      {{{"a", "b"}, {"c", "d"}}, {{"b", "c"}, {"a", "d"}}},  // all entangled
      {{{"a", "b", "c"}}, {{"c"}}},
      {{{"a", "b"}, {"b "}}, {{"b"}, {"b ", "a"}}},
      {{{"", "", ""}}, {{"", ""}}},
      {{{"a", ""}}, {{"a"}}},
  };
  for (const Row& row : rows) {
    run_group(2, [&](int rank, Runtime& runtime) {
      std::vector<Group> groups;
      for (const auto& names : rank == 0 ? row.first : row.second)
        groups.emplace_back(runtime, names);
      for (const Group& group : groups) check_contains(group.refusal(), "between ranks");
      check_goes_on(runtime);
      // Names that one rank has used and the other has not are owed an error there.
      std::set<std::string> used[2];
      for (const auto& names : row.first) used[0].insert(names.begin(), names.end());
      for (const auto& names : row.second) used[1].insert(names.begin(), names.end());
      for (auto& names : used) names.erase("");
      for (const std::string& name : used[1 - rank]) {
        if (!used[rank].contains(name)) check_contains(Group(runtime, {name}).refusal(), "between");
      }
      // Operations without a name are still in step.
      runtime.submit(barrier_request()).wait();
      Group(runtime, {"", ""}).check_sums(3.0F);
      Group(runtime, {"a", "b", "c", "d", "b "}).check_sums(3.0F);
    });
  }
}

TEST_CASE("a group against single operations of its names is refused to both") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int step = 0; step < 4; ++step) {
      // By now the single ones have slots, and then the group has one.
      std::vector<float> a(3, 1.0F), b(3, 1.0F);
      if (rank == 0) {
        check_contains(Group(runtime, {"a", "b"}).refusal(), "between ranks");
      } else {
        const Work first = runtime.submit(sum_request(a, "a"));
        const Work second = runtime.submit(sum_request(b, "b"));
        check_contains(usage_error_of(first), "between ranks");
        check_contains(usage_error_of(second), "between ranks");
      }
      const Work first = runtime.submit(sum_request(a, "a"));
      runtime.submit(sum_request(b, "b")).wait();
      first.wait();
      Group(runtime, {"b", "a"}).check_sums(3.0F);
    }
  });
}

TEST_CASE("a group that times out is refused as a whole, also to late ranks") {
  std::barrier step(2);
  run_group(2, [&](int rank, Runtime& runtime) {
    if (rank == 0) {
      const Group group(runtime, {"a", "b"}, kGlobalSet, milliseconds(20));
      check_contains(group.refusal(), "the group of 2 operations with 'a' timed out on rank 0");
    }
    step.arrive_and_wait();
    if (rank == 1) {
      // The two names come back one by one: both are owed.
      check_contains(Group(runtime, {"b"}).refusal(), "timed out on rank 0");
      check_contains(Group(runtime, {"a"}).refusal(), "timed out on rank 0");
    }
    step.arrive_and_wait();
    Group(runtime, {"a", "b"}).check_sums(3.0F);
  });
}

TEST_CASE("what cannot be a group is refused at once, and nothing of it is started") {
  run_group(1, [](int, Runtime& runtime) {
    std::vector<float> a(2), b(2);
    const auto refused = [&](std::vector<Request> requests, const std::string& expected) {
      check_contains(text_of<UsageError>([&] { runtime.submit_group(std::move(requests)); }),
                     expected);
    };
    refused({}, "at least one operation");
    refused({sum_request(a, "a"), barrier_request()}, "barrier: only collectives that move data");
    refused({sum_request(a, "a"), send_request(b, 0)}, "only collectives that move data");
    refused({sum_request(a, "a"), sum_request(b, "a")}, "allreduce 'a' is still in flight");
    Request null = sum_request(b, "b");
    null.input = nullptr;
    refused({sum_request(a, "a"), null}, "input is null");
    const ProcessSet set = runtime.add_process_set({0});
    Request other = sum_request(b, "b");
    other.set = set;
    refused({sum_request(a, "a"), other}, "in one process set");
    Request elsewhere = sum_request(b, "b");
    elsewhere.device.kind = DeviceKind::Cuda;
    refused({sum_request(a, "a"), elsewhere}, "must be on one kind of device");
    Group(runtime, {"a", "b"}).check_sums(1.0F);
    check_goes_on(runtime);
  });
}

TEST_CASE("ranks that do not contribute to a group get its result") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (int step = 0; step < 4; ++step) {
      std::vector<float> a(2, 1.0F), b(2, 1.0F);
      std::vector<Request> requests = {sum_request(a, "a"), sum_request(b, "b")};
      const bool nobody = step == 3;
      if (nobody || rank == 0) requests[0].contributes = false;
      if (nobody || rank == 1) requests[1].contributes = false;
      const std::vector<Work> works = runtime.submit_group(requests);
      for (const Work& work : works) {
        work.wait();
        check(work.contributed() != nobody, "whether anybody contributed to the group");
      }
      check(a[0] == 1.0F && b[1] == 1.0F, "one rank's values, or untouched");
    }
  });
}
