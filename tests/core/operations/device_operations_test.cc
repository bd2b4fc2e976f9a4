// SPDX-License-Identifier: Apache-2.0
// Operations on buffers of a device: ordered by events, queued before they are done.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>

#include "tests/support/fakes/fake_device.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using std::chrono::milliseconds;
using Shape = std::vector<std::int64_t>;
using Log = std::vector<std::string>;
using Floats = std::vector<float>;

/// The sum over all ranks of `values` on the device.
Request device_sum(std::vector<float>& values, const FakeDevice& device,
                   const std::string& name = "x") {
  return on_device(sum_request(values, name), device);
}

/// Collectives whose results have memory of their own.
constexpr Collective kApart[] = {Collective::Allgather, Collective::Alltoall,
                                 Collective::Reducescatter};

Request request_apart(Collective kind, const std::vector<float>& input, const FakeDevice& device) {
  Request request;
  request.kind = kind;
  request.name = "apart";
  request.shape = {static_cast<std::int64_t>(input.size())};
  request.input = input.data();
  return on_device(std::move(request), device);
}

/// Submits `request`, and returns once it is queued on the device.
Work queued(Runtime& runtime, Request request) {
  Work work = runtime.submit(std::move(request));
  work.wait_on(FakeDevice::stream('B'));
  return work;
}

}  // namespace

TEST_CASE("a work on a device is queued before it is done, and keeps its buffers until it is") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    std::vector<float> values(4, static_cast<float>(rank + 1));
    Request request = device_sum(values, device);
    request.keep_alive = std::make_shared<int>();
    const std::weak_ptr owner = request.keep_alive;
    const Work work = queued(runtime, std::move(request));
    device.wait_asked(3);
    check(!work.done() && !work.wait_for(milliseconds(1)), "the device has yet to come to it");
    check(values == std::vector<float>(4, static_cast<float>(rank + 1)), "no result yet");
    check(!owner.expired(), "the device will write there");
    check_equal(device.log(), Log{"mark1 A", "read", "result1", "order result1 B"}, "the order");
    device.pass();
    work.wait();
    check(owner.expired(), "released before the work is done");
    check(work.done() && values == std::vector<float>(4, 3.0F), "the sum");
    work.wait_on(FakeDevice::stream('C'));
    check(device.log().back() == "order result1 C", "also once it is done");
  });
}

TEST_CASE("a name may be used again once its operation is queued on the device") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    std::vector<std::vector<float>> steps(3, std::vector<float>(4, static_cast<float>(rank)));
    std::vector<Work> works;
    for (std::vector<float>& values : steps) {
      works.push_back(queued(runtime, device_sum(values, device)));
    }
    check(counter_of(runtime, "device_execution", "queued") == 3, "all are queued");
    check(counter_of(runtime, "device_execution", "passed") == 0, "and none has passed");
    device.pass();
    for (const Work& work : works) work.wait();
    check(steps == std::vector<std::vector<float>>(3, std::vector<float>(4, 1.0F)), "the sums");
  });
}

TEST_CASE("memory that the program makes for a result is marked; a rank that cannot fails alone") {
  for (const Collective kind : kApart) {
    DeviceGroup(2).run([kind](int rank, Runtime& runtime, FakeDevice& device) {
      const Floats input(4, 1.0F);
      Floats output(8);
      Request request = request_apart(kind, input, device);
      request.allocate_output = [&](const Shape&) {
        if (rank == 1) throw UsageError("no room for the result");
        device.note("allocate");
        return output.data();
      };
      const Work work = runtime.submit(std::move(request));
      if (rank == 1) {
        check(usage_error_of(work) == "no room for the result", "its own words");
      } else {
        work.wait();
        check_equal(device.log(), Log{"mark1 A", "allocate", "mark2 A", "read", "result1"},
                    "the order");
        check(output[1] == (kind == Collective::Reducescatter ? 2.0F : 1.0F), "the result");
      }
      check_goes_on(runtime);
    });
  }
}

TEST_CASE("what finish queues on a device follows the result, and is part of the operation") {
  DeviceGroup(2).run([](int, Runtime& runtime, FakeDevice& device) {
    std::vector<float> values(4, 1.0F);
    Request request = device_sum(values, device);
    request.finish = [&device] {
      device.note("finish");
      device.hold_marks();
    };
    const Work work = queued(runtime, std::move(request));
    check_equal(
        device.log(),
        Log{"mark1 A", "read", "result1", "order result1 A", "finish", "mark2 A", "order mark2 B"},
        "the order");
    check(!work.done(), "the device has yet to come to what finish queued");
    device.pass();
    work.wait();
    check(values[3] == 2.0F, "the sum");
  });
}

TEST_CASE("a finish that throws fails its work alone, once the device is done with the buffers") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    std::vector<float> values(4, 1.0F);
    Request request = device_sum(values, device);
    if (rank == 1) {
      request.finish = [] { throw UsageError("no room for the result"); };
    }
    const Work work = runtime.submit(std::move(request));
    if (rank == 1) {
      device.wait_asked(3);
      check(!work.done(), "the device still writes");
      device.pass();
      const std::string text = text_of<UsageError>([&] { work.wait_on(FakeDevice::stream('B')); });
      check(text == "no room for the result" && usage_error_of(work) == text, "its own words");
    } else {
      device.pass();
      work.wait();
    }
    check_goes_on(runtime);
  });
}

TEST_CASE("splits and sources are known once alltoalls and messages are queued on a device") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    const bool is_first = rank == 0;
    const float mine = is_first ? 0 : 10;
    const Floats input = {mine, mine + 1, mine + 2, mine + 3};
    Floats output(is_first ? 2 : 6), messages[] = {input, input};
    Request exchange = request_apart(Collective::Alltoall, input, device);
    exchange.splits = {1, 3};
    exchange.output = output.data();
    std::vector<Work> works = {queued(runtime, exchange)};
    check_equal(works[0].received_splits(), Shape(2, is_first ? 1 : 3), "the rows");
    for (const int from : {0, kAnyRank}) {
      Floats& values = messages[works.size() - 1];
      const Request message = is_first ? send_request(values, 1) : recv_request(values, from);
      works.push_back(queued(runtime, on_device(message, device)));
      if (!is_first) check_equal(works.back().source(), 0, "the sender");
    }
    for (const Work& work : works) check(!work.done(), "the device has yet to come to it");
    device.pass();
    for (const Work& work : works) work.wait();
    check_equal(output, is_first ? Floats{0, 10} : Floats{1, 2, 3, 11, 12, 13}, "the exchange");
    for (const Floats& message : messages) check_equal(message, Floats{0, 1, 2, 3}, "a message");
  });
}

TEST_CASE("buffers of the CPU and of a device go through the same group") {
  DeviceGroup(3).run([](int, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    std::vector<float> here(4, 1.0F), there(4, 1.0F);
    const Work on_gpu = runtime.submit(device_sum(there, device, "there"));
    const Work on_cpu = runtime.submit(sum_request(here, "here"));
    on_cpu.wait_on(nullptr);  // as wait()
    check(here == std::vector<float>(4, 3.0F), "not held up by a device that is slow");
    check(!on_gpu.done(), "which is still at work");
    device.pass();
    on_gpu.wait();
    check(there == here, "the same sum");
  });
}

TEST_CASE("the operations of a group are queued each with its own event") {
  DeviceGroup(2).run([](int, Runtime& runtime, FakeDevice& device) {
    device.hold_results();
    std::vector<float> a(2, 1.0F), b(3, 2.0F);
    std::vector<double> c(2, 3.0);
    Request third = device_sum(a, device, "c");
    third.dtype = DataType::F64;
    third.input = third.output = c.data();
    const std::vector<Work> works = runtime.submit_group(
        {device_sum(a, device, "a"), device_sum(b, device, "b"), std::move(third)});
    for (const Work& work : works) work.wait_on(FakeDevice::stream('B'));
    const Log log = device.log();
    check(std::count(log.begin(), log.end(), "order result1 B") == 2, "a and b went together");
    check(std::count(log.begin(), log.end(), "order result2 B") == 1, "c is of another type");
    check(!works[0].done() && !works[2].done(), "none is done");
    device.pass();
    for (const Work& work : works) work.wait();
    check(a[1] == 2.0F && b[2] == 4.0F && c[1] == 6.0, "the sums");
  });
}

TEST_CASE("ranks that have joined take part in operations on devices without memory for them") {
  DeviceGroup(3).run([](int rank, Runtime& runtime, FakeDevice& device) {
    if (rank > 0) {
      std::vector<float> values(4, static_cast<float>(rank));
      Request average = device_sum(values, device);
      average.op = ReduceOp::Average;
      runtime.submit(std::move(average)).wait();
      check(values == std::vector<float>(4, 1.5F), "the average of those that are left");
      std::vector<float> input(3, static_cast<float>(rank)), output(1);
      Request scatter = request_apart(Collective::Reducescatter, input, device);
      scatter.output = output.data();
      runtime.submit(std::move(scatter)).wait();
      check(output[0] == 3.0F, "a part of the sum");
    }
    runtime.run(join_request());
    check_goes_on(runtime);
    if (rank == 0)
      check_equal(device.log(), Log{"read", "nobody", "result1", "read", "nobody", "result2"},
                  "the order");
  });
}

TEST_CASE("a frozen schedule runs operations on devices, whose results are waited for on streams") {
  DeviceGroup(2).run(
      [](int rank, Runtime& runtime, FakeDevice& device) {
        std::vector<float> a(4), b(4);
        for (int step = 0; step < 40; ++step) {
          a.assign(4, static_cast<float>(rank + step));
          b.assign(4, 1.0F);
          const Work first = runtime.submit(device_sum(a, device, "a"));
          const Work second = runtime.submit(device_sum(b, device, "b"));
          first.wait_on(FakeDevice::stream('A'));
          second.wait_on(FakeDevice::stream('A'));
          check(a[3] == static_cast<float>(2 * step + 1) && b[0] == 2.0F, "the sums");
        }
        check(counter_of(runtime, "schedule", "freezes") > 0, "it froze");
        check(counter_of(runtime, "device_execution", "queued") == 80, "all went to the device");
      },
      [](int, RuntimeOptions& options) { options.config.freeze_after_steps = 3; });
}

TEST_CASE(
    "an input that lies in the memory of a result on a device is refused, others get theirs") {
  for (const Collective kind : kApart) {
    DeviceGroup(2).run([kind](int rank, Runtime& runtime, FakeDevice& device) {
      std::vector<float> memory(16, 1.0F);
      const std::vector<float> input(4, 1.0F);
      Request request = request_apart(kind, input, device);
      if (rank == 1) request.input = memory.data() + 1;
      request.output = memory.data();
      const Work work = runtime.submit(std::move(request));
      if (rank == 1) {
        const std::string text = usage_error_of(work);
        check_contains(text, "rank 1 gave an input that lies in the memory of the result");
        check_contains(text, "give memory of its own");
        check(memory == std::vector<float>(16, 1.0F), "untouched");
      } else {
        work.wait();
        check(memory[0] == (kind == Collective::Reducescatter ? 2.0F : 1.0F), "its result");
      }
      check_goes_on(runtime);
    });
  }
}

TEST_CASE("what a device cannot have is refused by the rank that asks for it") {
  DeviceGroup(2).run([](int rank, Runtime& runtime, FakeDevice& device) {
    std::vector<float> values(4, 1.0F);
    const auto check_refused = [&](const std::function<void(Request&)>& change,
                                   const std::string& text) {
      Request request = device_sum(values, device);
      change(request);
      check_contains(text_of<UsageError>([&] { runtime.submit(request); }), text);
    };
    check_refused([](Request& request) { request.op = ReduceOp::Adasum; },
                  "adasum is computed on the CPU");
    check_refused([](Request& request) { request.symmetric = true; }, "of the CPU, is symmetric");
    check_refused([](Request& request) { request.device.index = 0; },
                  "rank " + std::to_string(rank) + ": allreduce 'x': no device 0 here");
    // Nothing converts what a device backend does not convert itself.
    Request half = device_sum(values, device, "half");
    half.wire_dtype = DataType::F16;
    check_contains(usage_error_of(runtime.submit(half)), "backend fake cannot do");
    check_goes_on(runtime);
  });
}

TEST_CASE("a group is shut down, and a process set removed, once what is queued there is over") {
  for (const bool removes : {false, true}) {
    DeviceGroup(3).run([removes](int rank, Runtime& runtime, FakeDevice& device) {
      // The numbers of the members add up to the same.
      const ProcessSet set = removes ? runtime.add_process_set({2, 1}) : kGlobalSet;
      const bool is_member = !removes || rank > 0;
      if (rank == 1) device.hold_results();
      std::vector<float> values(4, static_cast<float>(rank));
      Request request = device_sum(values, device);
      request.set = set;
      const Work work = is_member ? queued(runtime, std::move(request)) : Work();
      check(rank != 1 || !work.done(), "queued");
      std::atomic<bool> goes_on{false};
      std::thread gpu([&] {
        device.wait_asked(rank == 1 ? 100 : 0);
        goes_on = true;
        device.pass();
      });
      removes ? runtime.remove_process_set(set) : runtime.shutdown();
      const bool had_passed = goes_on;
      gpu.join();
      check(rank != 1 || had_passed, "not before the device has come to it");
      check(work.done() && values[3] == (is_member ? 3.0F : 0.0F), "the sum of the members");
      if (removes) check_goes_on(runtime);
    });
  }
}
