// SPDX-License-Identifier: Apache-2.0
// RONDE_VERIFY notices that a backend gave one rank another result than the others.
#include <catch2/catch.hpp>
#include <new>

#include "core/src/base/rank_list.h"
#include "tests/support/ranks/faulty_group.h"
#include "tests/support/ranks/goes_on.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace {

using namespace ronde;
using namespace ronde::test;

const std::vector<std::vector<int>> kHosts = {{0, 0}, {0, 0, 0}, {0, 0, 0, 0},
                                              {0, 1}, {0, 0, 1}, {0, 1, 1, 0}};

Config verifying(bool verify = true) {
  Config config = test_config();
  config.verify = verify;
  config.freeze_after_steps = 1;
  return config;
}

/// Equal ones on all ranks, with results for up to four of them.
struct Buffers {
  std::vector<float> input = std::vector<float>(12, 1.0F);
  std::vector<float> output = std::vector<float>(48);

  Request request(Collective kind, const std::string& name = "w") {
    Request request = sum_request(input, name);
    request.kind = kind;
    request.output = output.data();
    return request;
  }
};

/// A group that verifies results, in which bits of some are flipped.
struct VerifiedGroup : FaultyGroup {
  using FaultyGroup::FaultyGroup;

  std::vector<Death> deaths(const std::function<Death(int, Runtime&)>& body) const {
    return on_each_rank(static_cast<int>(faults.size()), [&](int rank) {
      RuntimeOptions options = this->options(rank, verifying());
      // The backend with the fault writes to the program's tensors.
      options.backends["inproc"].create =
          [this, rank, create = group.backend_factory().create](BackendContext& context) {
            return std::make_unique<FaultyBackend>(context.pack(create(context)),
                                                   faults[static_cast<std::size_t>(rank)]);
          };
      Runtime runtime(std::move(options));
      return body(rank, runtime);
    });
  }
  void flip_bit(int rank, int nth) const { faults[static_cast<std::size_t>(rank)]->flip_bit(nth); }
};

/// Returns the rank to blame: none where two ranks differ.
int culprit(const std::vector<int>& hosts, int bad) {
  return hosts.size() > 2 ? bad : -1;
}

std::vector<std::string> parts(const std::vector<int>& hosts, const std::string& operation,
                               int bad) {
  std::vector<int> good;
  for (int rank = 0; rank < std::ssize(hosts); ++rank) {
    if (rank != bad) good.push_back(rank);
  }
  const std::string who = good.size() > 1 ? "rank " + std::to_string(bad) : "ranks 0,1";
  return {operation + " has different results on its ranks: ", "rank " + std::to_string(bad) + ": ",
          format_ranks(good) + ": ", "RONDE_VERIFY). See whether the program of " + who + " writes",
          "The group is dead"};
}

}  // namespace

TEST_CASE("a flipped bit in one rank's result ends the group at the next operation") {
  for (const std::vector<int>& hosts : kHosts) {
    for (const Collective kind :
         {Collective::Allreduce, Collective::Broadcast, Collective::Allgather}) {
      for (const int bad : {0, static_cast<int>(hosts.size()) - 1}) {
        const VerifiedGroup group(hosts);
        group.flip_bit(bad, 6);
        const std::vector<Death> deaths = group.deaths([&](int, Runtime& runtime) {
          Buffers buffers;
          for (int step = 0; step < 6; ++step) {
            runtime.submit(buffers.request(kind)).wait();
            if (step < 5) runtime.mark_step();
          }
          return death_in_barrier(runtime);
        });
        INFO(hosts.size() << " ranks, " << to_string(kind));
        const std::string name = std::string(to_string(kind)) + " 'w'";
        check_same_death(deaths, culprit(hosts, bad), parts(hosts, name, bad));
        CHECK_THAT(deaths[0].text, Catch::Contains(" (step 6, RONDE_VERIFY)"));
      }
    }
  }
}

TEST_CASE("a flipped bit in the last result of all ends the group in shutdown()") {
  for (const std::vector<int>& hosts : kHosts) {
    const int bad = static_cast<int>(hosts.size()) - 1;
    const VerifiedGroup group(hosts);
    group.flip_bit(bad, 1);
    const std::vector<Death> deaths = group.deaths([&](int rank, Runtime& runtime) {
      Buffers buffers;
      const Work work = runtime.submit(buffers.request(Collective::Allreduce, ""));
      if (rank == 1) work.wait();
      return death_of([&] { runtime.shutdown(); });
    });
    check_same_death(deaths, culprit(hosts, bad),
                     parts(hosts, "allreduce number 0 without a name", bad));
  }
}

TEST_CASE("of several results that differ the first is named, also in a bucket and a group") {
  const bool as_group = GENERATE(false, true);
  const VerifiedGroup group({0, 0, 1});
  group.flip_bit(1, 1);
  const std::vector<Death> deaths = group.deaths([&](int, Runtime& runtime) {
    std::vector<Buffers> buffers(4);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      requests.push_back(buffers[i].request(Collective::Allreduce, "w" + std::to_string(i)));
      requests.back().wire_dtype = DataType::BF16;
    }
    // On a slow machine the first result may be compared before the last operation is agreed.
    return death_of([&] {
      std::vector<Work> works;
      if (as_group) {
        works = runtime.submit_group(requests);
      } else {
        for (const Request& request : requests) works.push_back(runtime.submit(request));
      }
      for (const Work& work : works) work.wait();
      runtime.submit(barrier_request()).wait();
    });
  });
  check_same_death(deaths, 1, {"allreduce 'w0' has", "ranks 0,2: ", "rank 1: "});
}

TEST_CASE("a result of a process set without rank 0 is verified, even if the set is removed next") {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 0, 1, 1}}) {
    const VerifiedGroup group(hosts);
    group.flip_bit(2, 1);
    const std::vector<Death> deaths = group.deaths([&](int rank, Runtime& runtime) {
      const ProcessSet set = runtime.add_process_set({3, 2, 1});
      Buffers buffers;
      Request request = buffers.request(Collective::Allgather);
      request.set = set;
      if (rank > 0) runtime.submit(request).wait();
      runtime.remove_process_set(set);
      return death_of([&] { runtime.shutdown(); });
    });
    check_same_death(deaths, 2, {"allgather 'w' in process set 1 has", "ranks 1,3: ", "rank 2: "});
  }
}

TEST_CASE("results that may differ, failed ones and those of joined ranks raise no alarm") {
  for (const std::vector<int>& hosts : kHosts) {
    const VerifiedGroup group(hosts);
    group.flip_bit(0, 1);
    group.flip_bit(1, 2);
    group.deaths([&](int rank, Runtime& runtime) {
      Buffers buffers;
      runtime.submit(buffers.request(Collective::Reducescatter)).wait();
      runtime.submit(buffers.request(Collective::Alltoall)).wait();
      Request gathered = buffers.request(Collective::Allgather);
      gathered.output = nullptr;
      gathered.allocate_output = [&](const std::vector<std::int64_t>&) -> void* {
        if (rank == 1) throw std::bad_alloc();
        return buffers.output.data();
      };
      const Work work = runtime.submit(gathered);
      if (rank == 1) {
        usage_error_of(work);
        group.flip_bit(1, 1);
      } else {
        work.wait();
        runtime.submit(buffers.request(Collective::Allreduce)).wait();
      }
      runtime.run(join_request());
      check_goes_on(runtime);
      runtime.shutdown();
      return Death();
    });
  }
}

TEST_CASE("without RONDE_VERIFY results are not compared") {
  FaultyGroup group(2);
  group.faults[0]->flip_bit(1);
  run_ranks(2, [&](int rank) {
    Runtime runtime(group.options(rank, verifying(false)));
    Buffers buffers;
    runtime.submit(buffers.request(Collective::Broadcast)).wait();
    check_goes_on(runtime);
    runtime.shutdown();
  });
}
