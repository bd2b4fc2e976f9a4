// SPDX-License-Identifier: Apache-2.0
// Devices that fail, hang, or are at work while a rank dies.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/support/fakes/fake_device.h"
#include "tests/support/ranks/faulty_group.h"

namespace {

using namespace ronde;
using namespace ronde::test;

enum class How { Killed, Left, DeviceFails };

/// Rank `victim` ends, or its device fails, while results are queued on every device.
void check_end(int victim, How how, bool hangs) {
  CAPTURE(victim, how, hangs);
  DeviceGroup all(3);
  std::latch queued(3);
  std::vector<Death> deaths(3);
  std::vector<std::weak_ptr<std::vector<float>>> watched(3);
  run_ranks(3, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    FakeDevice& device = all.device(rank);
    Runtime runtime(all.options(rank));
    device.hold_results();
    if (hangs) device.hang();
    auto values = std::make_shared<std::vector<float>>(1000, 1.0F);
    watched[place] = values;
    Request request = on_device(sum_request(*values, "x"), device);
    request.keep_alive = std::move(values);  // its only owner
    const Work work = runtime.submit(std::move(request));
    work.wait_on(FakeDevice::stream('B'));
    queued.arrive_and_wait();
    const bool has_failed = rank == victim && how == How::DeviceFails;
    if (has_failed) device.fail("the GPU fell off the bus");
    if (rank == victim && how == How::Killed) all.group.kill(rank);
    if (rank == victim && !has_failed) return;
    deaths[place] = death_of([&] { work.wait(); });
    check(death_of([&] { work.wait_on(FakeDevice::stream('B')); }) == deaths[place], "later too");
    const std::vector<std::string> log = device.log();
    check(log[4] == "drain", "it waited for the device");
    // In the first half of the time nothing ends what may end by itself.
    check(log.size() == (hangs ? 6 : 5) && (!hangs || log[5] == "cancel waits"),
          "and ended its waits");
    check(watched[place].expired() == (!hangs && !has_failed),
          "buffers are kept from a device that hangs or has failed");
  });
  std::string text = how == How::Killed ? "was lost" : "left";
  if (how == How::DeviceFails) {
    text = "rank " + std::to_string(victim) + " failed: the GPU fell off the bus";
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    all.device(rank).pass();  // one that hangs writes now, to memory that must be there
    if (rank == victim && how != How::DeviceFails) continue;
    CHECK(deaths[place].rank == victim);
    if (how == How::DeviceFails) CHECK(deaths[place] == deaths[0]);
    CHECK_THAT(deaths[place].text, Catch::Contains(text));
    if (hangs) CHECK(watched[place].lock()->at(999) == 3.0F);
  }
}

/// How the group dies while something is queued for too long on the devices of both ranks; that of
/// rank 1 has this timeout.
Death death_of_queued(const Config& config, std::chrono::nanoseconds timeout) {
  DeviceGroup all(2);
  std::vector<Death> deaths(2);
  run_ranks(2, [&](int rank) {
    FakeDevice& device = all.device(rank);
    std::vector<float> values(4, 1.0F);
    Runtime runtime(all.options(rank, config));
    device.hold_results();
    Request request = on_device(sum_request(values, "x"), device);
    if (rank == 1) request.timeout = timeout;
    // Rank 1 only begins to count once rank 0 has come, which it has before the barrier.
    if (rank == 1) runtime.submit(barrier_request()).wait();
    const Work work = runtime.submit(std::move(request));
    if (rank == 0) runtime.submit(barrier_request()).wait();
    if (rank == 1) work.wait_on(FakeDevice::stream('B'));
    deaths[static_cast<std::size_t>(rank)] = death_of([&] { work.wait(); });
  });
  CHECK(deaths[0] == deaths[1]);
  return deaths[0];
}

}  // namespace

TEST_CASE("who ends at work is named, and buffers of a device that hangs or has failed are kept") {
  for (const How how : {How::Killed, How::Left}) {
    for (const int victim : {0, 1, 2}) check_end(victim, how, false);
    check_end(1, how, true);
  }
  check_end(1, How::DeviceFails, false);
}

TEST_CASE("a device that fails when a stream is ordered fails all operations that were with it") {
  DeviceGroup all(2);
  run_ranks(2, [&](int rank) {
    FakeDevice& device = all.device(rank);
    std::vector<float> a(4, 1.0F), b(4, 1.0F);
    Runtime runtime(all.options(rank));
    Request first = on_device(sum_request(a, "a"), device);
    if (rank == 1) {
      first.finish = [] {};  // for which a stream is ordered
      device.fail_orders("the GPU fell off the bus");
    } else {
      device.hold_results();
    }
    const std::vector<Work> works =
        runtime.submit_group({std::move(first), on_device(sum_request(b, "b"), device)});
    for (const Work& work : works) {
      const Death death = death_of([&] { work.wait(); });
      check(death.rank == 1, "of all of them");
      check_contains(death.text, "rank 1 failed: the GPU fell off the bus");
    }
    check(death_in_barrier(runtime).rank == 1, "rank 1 is named");
  });
}

TEST_CASE("what is queued on a device for too long fails the group") {
  Config config = test_config();
  config.stall_warn_s = 0.1;
  config.stall_abort_s = 5.0;
  const auto text = [](const Death& death) {
    return "allreduce 'x' has been queued on the GPU of rank " + std::to_string(death.rank) +
           " for longer than ";
  };
  const Death stalled = death_of_queued(config, {});
  CHECK_THAT(stalled.text, Catch::Contains(text(stalled) + "RONDE_STALL_ABORT_S"));
  const Death late = death_of_queued(test_config(), std::chrono::seconds(2));
  CHECK(late.rank == 1);
  CHECK_THAT(late.text, Catch::Contains(text(late) + "its timeout"));
}
