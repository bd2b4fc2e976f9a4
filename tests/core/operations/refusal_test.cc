// SPDX-License-Identifier: Apache-2.0
// Ranks that refuse their part of an operation (Request::refusal, Start::refusal).
#include <array>
#include <catch2/catch.hpp>
#include <latch>
#include <span>

#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;

/// Without buffers or a shape.
Request refused_request(const std::string& name, const std::string& why,
                        Collective kind = Collective::Allreduce) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.refusal = why;
  return request;
}

/// The reason of each rank (empty: does not refuse), and the text that lists them.
struct Refusing {
  std::vector<int> host_of;
  std::vector<std::string> reasons;
  std::string listed;
};

const std::vector<Refusing> kRefusing = {
    {{0, 0}, {"", "no memory"}, "\n  rank 1: no memory"},
    {{0, 0, 0}, {"full", "", "empty"}, "\n  rank 2: empty\n  rank 0: full"},
    {{0, 0, 1}, {"", "no memory", ""}, "\n  rank 1: no memory"},
    {{0, 0, 1}, {"", "", "two\nlines"}, "\n  rank 2: two\nlines"},
    {{0, 0, 1}, {"same", "same", "same"}, "\n  ranks 0-2: same"},
    {{0, 1, 0, 1}, {"", "a", "b", "a"}, "\n  ranks 1,3: a\n  rank 2: b"},
};

}  // namespace

TEST_CASE("a refused operation fails on all ranks with all reasons, and can be submitted again") {
  for (const Refusing& row : kRefusing) {
    for (const std::string name : {"x", ""}) {
      run_on(row.host_of, [&](int rank, Runtime& runtime) {
        const std::string& why = row.reasons[static_cast<std::size_t>(rank)];
        std::vector<float> values(3);
        const PersistentOp sum = runtime.prepare(sum_request(values, name));
        // Between refusals it is cached. Refused by a start, by a request, and some by each.
        for (int step = 0; step < 9; ++step) {
          values.assign(3, 1.0F);
          const bool starts = step < 6 && (step < 3 || rank % 2 == 0);
          const bool is_refused = step % 3 == 1;
          if (!is_refused) {
            sum.start({.input = values.data(), .output = values.data()}).wait();
            check_equal(values[2], static_cast<float>(row.host_of.size()), "the sum");
            continue;
          }
          const Work work = why.empty() ? runtime.submit(sum_request(values, name))
                            : starts    ? sum.start({.refusal = why})
                                        : runtime.submit(refused_request(name, why));
          const std::string what =
              name.empty() ? "number " + std::to_string(step) + " without a name" : "'x'";
          check_equal(usage_error_of(work), "allreduce " + what + " was refused:" + row.listed,
                      "the text");
          check_equal(values, std::vector<float>(3, 1.0F), "what nobody touched");
        }
        if (rank == 0) {
          check_equal(counter_of(runtime, "negotiation", "refused"), 3U, "refused operations");
          // Others are agreed on by slot, but for the first.
          check_equal(counter_of(runtime, "negotiation", "agreed_in_full"), 1U, "full agreements");
        }
        check_goes_on(runtime);
      });
    }
  }
}

TEST_CASE("operations of any kind are refused without a shape, buffers or the kind of the others") {
  constexpr std::array kKinds = {Collective::Allreduce,     Collective::Broadcast,
                                 Collective::Allgather,     Collective::Alltoall,
                                 Collective::Reducescatter, Collective::Barrier};
  run_group(3, [&](int rank, Runtime& runtime) {
    for (const Collective kind : kKinds) {
      for (const int refusing : {0, 1}) {
        for (const bool knows_kind : {true, false}) {
          std::vector<float> input(6, 1.0F);
          std::vector<float> output(18, -1.0F);
          Request request = sum_request(input, "x");
          request.kind = kind;
          request.shape = {3, 2};
          request.output = output.data();
          const Collective told = knows_kind ? kind : Collective::Allreduce;
          if (rank == refusing) request = refused_request("x", "cannot", told);
          const std::string kind_of_others(to_string(kind));
          check_equal(
              usage_error_of(runtime.submit(request)),
              kind_of_others + " 'x' was refused:\n  rank " + std::to_string(refusing) + ": cannot",
              "the text");
          check_equal(output, std::vector<float>(18, -1.0F), "what nobody touched");
        }
      }
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("a refusal uses no buffer and calls nothing, and keeps its owner until the end") {
  std::latch refused(1);
  run_group(2, [&](int rank, Runtime& runtime) {
    std::vector<float> values(3, 1.0F);
    if (rank == 0) {
      refused.wait();
      check_contains(usage_error_of(runtime.submit(sum_request(values, "x"))), "rank 1: cannot");
      runtime.submit(sum_request(values, "y")).wait();
      return;
    }
    const Work other = runtime.submit(sum_request(values, "y"));
    std::shared_ptr<void> until_refused(nullptr, [&](void*) { refused.count_down(); });
    auto owner = std::make_shared<int>(0);
    const std::weak_ptr<int> kept = owner;
    int calls = 0;
    Request request = refused_request("x", "cannot");
    request.shape = {3};
    // The other operation writes there, and there is no symmetric heap.
    request.input = request.output = values.data();
    request.symmetric = true;
    request.written = std::as_bytes(std::span(values));
    request.finish = [&calls] { ++calls; };
    request.allocate_output = [&](const std::vector<std::int64_t>&) -> void* {
      ++calls;
      return values.data();
    };
    request.keep_alive = std::move(owner);
    const Work work = runtime.submit(std::move(request));
    check(!kept.expired(), "it is kept");
    until_refused.reset();
    check_contains(usage_error_of(work), "rank 1: cannot");
    check(kept.expired(), "it was released");
    other.wait();
    check_equal(calls, 0, "calls");
    check_equal(values[2], 2.0F, "the other sum");
  });
}

TEST_CASE("a member's refusal refuses the group, and a rank may refuse a group as one operation") {
  for (const auto& host_of : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 0, 1}}) {
    run_on(host_of, [](int rank, Runtime& runtime) {
      std::vector<float> a(2), b(3), c(4);
      const auto group = [&] {
        for (auto* const values : {&a, &b, &c}) std::ranges::fill(*values, 1.0F);
        return std::vector<Request>{sum_request(a, "a"), sum_request(b, "b"), sum_request(c, "")};
      };
      for (int step = 0; step < 3; ++step) {
        for (const Work& work : runtime.submit_group(group())) work.wait();
        check_equal(a[1] + b[2] + c[3], 9.0F, "the sums");
        std::vector<Request> requests = group();
        if (rank == 1) requests[1] = refused_request("b", "cannot");
        if (rank == 2) requests[2] = refused_request("", "nor I");
        if (rank == 2) requests.push_back(refused_request("", "nor that"));
        for (const Work& work : runtime.submit_group(std::move(requests))) {
          check_equal(usage_error_of(work),
                      "the group of 3 operations with 'a' was refused:"
                      "\n  rank 1: allreduce 'b': cannot"
                      "\n  rank 2: allreduce number 0 without a name: nor I"
                      "\n  rank 2: allreduce number 1 without a name: nor that",
                      "the text");
        }
        const std::vector<Work> works =
            rank == 1 ? std::vector<Work>{runtime.submit(refused_request("a", "none of it"))}
                      : runtime.submit_group({group()[0], group()[2]});
        for (const Work& work : works) {
          check_equal(usage_error_of(work),
                      "the group of 2 operations with 'a' was refused:\n  rank 1: none of it",
                      "the text");
        }
      }
      check_goes_on(runtime);
    });
  }
}

TEST_CASE("a refusal in a process set names ranks of the group, and needs no backend there") {
  run_on({0, 1, 0}, [](int rank, Runtime& runtime) {
    const ProcessSet set = runtime.add_process_set({2, 0});
    if (rank != 1) {
      std::vector<float> values(3, 1.0F);
      Request request = sum_request(values, "x");
      if (rank == 2) {
        request = refused_request("x", "cannot");
        request.device.kind = DeviceKind::Cuda;
      }
      request.set = set;
      for (int step = 0; step < 2; ++step) {
        check_equal(usage_error_of(runtime.submit(request)),
                    "allreduce 'x' in process set 1 was refused:\n  rank 2: cannot", "the text");
      }
    }
    check_goes_on(runtime);
    runtime.remove_process_set(set);
  });
}

TEST_CASE("operations of those that have not joined are refused by them alone") {
  run_group(3, [](int rank, Runtime& runtime) {
    if (rank > 0) {
      for (const auto& [kind, refusing] :
           {std::pair(Collective::Allreduce, 1), std::pair(Collective::Allreduce, 2),
            std::pair(Collective::Allgather, 2)}) {
        std::vector<float> values(3, 1.0F);
        std::vector<float> output(9, -1.0F);
        Request request = sum_request(values, "x");
        request.kind = kind;
        request.output = output.data();
        if (rank == refusing) request = refused_request("x", "cannot", kind);
        check_equal(usage_error_of(runtime.submit(request)),
                    std::string(to_string(kind)) + " 'x' was refused:\n  rank " +
                        std::to_string(refusing) + ": cannot",
                    "the text");
      }
      std::vector<float> values(3, 1.0F);
      runtime.submit(sum_request(values, "x")).wait();
      check_equal(values[2], 2.0F, "the sum of those that are left");
    }
    runtime.submit(join_request()).wait();
    Request refused = join_request();
    refused.refusal = "cannot";
    check_contains(text_of<UsageError>([&] { runtime.submit(refused); }), "no refusal");
    check_goes_on(runtime);
  });
}

TEST_CASE("a refused message fails on both ends, and later ones keep their order") {
  run_group(2, [](int rank, Runtime& runtime) {
    for (const int refusing : {0, 1}) {
      std::vector<float> values(2, static_cast<float>(rank));
      std::vector<float> others = values;
      const auto request_of = [rank](std::vector<float>& each) {
        return rank == 0 ? send_request(each, 1) : recv_request(each, kAnyRank);
      };
      Request request = request_of(others);
      if (rank == refusing) {
        request.refusal = "cannot";
        request.shape = {};
        request.input = request.output = nullptr;
      }
      const Work refused = runtime.submit(request);
      const Work next = runtime.submit(request_of(values));
      check_equal(usage_error_of(refused),
                  "the message from rank 0 to rank 1 (tag 0) was refused:\n  rank " +
                      std::to_string(refusing) + ": cannot",
                  "the text");
      next.wait();
      check_equal(values[1], 0.0F, "the message");
      check_equal(others[1], static_cast<float>(rank), "what nobody touched");
    }
  });
}
