// SPDX-License-Identifier: Apache-2.0
// Which backend serves the buffers of devices, and what is said where there is none.
#include <catch2/catch.hpp>

#include "ronde/plugin/choice.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/ranks/goes_on.h"

namespace {

using namespace ronde;
using namespace ronde::test;
using Change = DeviceGroup::Change;

constexpr int kRanks = 3;

/// Every rank is refused a sum on its device with a text that has all `parts`; the group goes on.
void check_refused(Runtime& runtime, const FakeDevice& device, ProcessSet set,
                   const std::vector<std::string>& parts) {
  std::vector<float> values(4, 1.0F);
  Request request = on_device(sum_request(values, "x"), device);
  request.set = set;
  const std::string text = text_of<UsageError>([&] { runtime.submit(request).wait(); });
  for (const std::string& part : parts) check_contains(text, part);
  check_goes_on(runtime);
}

void check_sum(Runtime& runtime, const FakeDevice& device) {
  std::vector<float> values(4, 1.0F);
  runtime.submit(on_device(sum_request(values, "x"), device)).wait();
  check(values == std::vector<float>(4, kRanks), "the sum");
}

BackendFactory factory(DeviceKind device, int priority, bool serves_sets = true) {
  BackendFactory made;
  made.device = device;
  made.priority = priority;
  made.serves_sets = serves_sets;
  return made;
}

/// The problem of a backend that rank `absent` alone cannot have, as `rank` sees it.
std::function<std::string()> absent_on(int absent, const std::string& text, int rank) {
  return [=] { return rank == absent ? text : ""; };
}

/// Rank 1 cannot make its backend.
template <typename Thrown>
void fail_to_create(int rank, RuntimeOptions& options) {
  if (rank != 1) return;
  options.device_backends["fake"].create = [](BackendContext&) -> std::unique_ptr<Backend> {
    throw Thrown("there is no GPU 7");
  };
}

const BackendRegistry kSome = {{"shm", factory(DeviceKind::Cpu, 20)},
                               {"mpi", factory(DeviceKind::Cuda, 10)},
                               {"nccl", factory(DeviceKind::Cuda, 15, false)}};

}  // namespace

TEST_CASE("backends are chosen among those of the device") {
  const Topology topology = make_topology(0, {0, 0});
  const auto choose = [&](DeviceKind device, const char* wanted) {
    return choose_backend(kSome, device, wanted, topology).first;
  };
  CHECK(choose(DeviceKind::Cpu, "auto") == "shm");
  CHECK(choose(DeviceKind::Cuda, "auto") == "nccl");
  CHECK(choose(DeviceKind::Cuda, "mpi") == "mpi");
  CHECK_THROWS_WITH(choose(DeviceKind::Cuda, "shm"),
                    Catch::Contains("no backend 'shm' for cuda buffers") &&
                        Catch::EndsWith("there are: auto, mpi, nccl"));
  CHECK_THROWS_WITH(choose(DeviceKind::Cpu, "nccl"), Catch::EndsWith("there are: auto, shm"));
  CHECK(choose_set_backend(kSome, DeviceKind::Cuda, "nccl", topology).first == "mpi");
  CHECK_THROWS_WITH(choose_backend({}, DeviceKind::Cuda, "auto", topology),
                    Catch::EndsWith("there are: auto"));
}

TEST_CASE(
    "of the device backends that all ranks can have, the one asked for or the best is taken") {
  for (const bool asks : {false, true}) {
    DeviceGroup(kRanks).run(
        [](int, Runtime& runtime, FakeDevice& device) {
          check(runtime.backend_name(DeviceKind::Cuda) == "fake",
                "the one asked for, or that all ranks have");
          check_sum(runtime, device);
        },
        [asks](int rank, RuntimeOptions& options) {
          BackendFactory better = options.device_backends.at("fake");
          better.priority = 9;
          if (!asks) better.problem = absent_on(1, "no library", rank);
          options.device_backends["better"] = better;
          if (asks) options.config.gpu_backend = "fake";
        });
  }
}

TEST_CASE("where ranks can have no backend for devices, they are told why, in sets too") {
  struct Row {
    Change change;
    std::string reason;
  };
  const Row rows[] = {{[](int rank, RuntimeOptions& options) {
                         options.device_backends["fake"].problem =
                             absent_on(2, "libfake.so is not found: install it", rank);
                       },
                       "fake: rank 2: libfake.so is not found: install it"},
                      {[](int, RuntimeOptions& options) { options.device_backends.clear(); },
                       "there is no backend for cuda buffers"},
                      {[](int, RuntimeOptions& options) {
                         options.device_backends["fake"].suits = [](const Topology& topology) {
                           return topology.size > 9;
                         };
                       },
                       "fake: it does not suit these ranks"}};
  for (const Row& row : rows) {
    const auto body = [&](int rank, Runtime& runtime, FakeDevice& device) {
      check(runtime.backend_name(DeviceKind::Cuda).empty(), "none");
      const std::vector<std::string> parts = {"no backend for cuda buffers", row.reason,
                                              "copy them to the CPU first"};
      check_refused(runtime, device, kGlobalSet, parts);
      const ProcessSet set = runtime.add_process_set({0, 1});
      if (rank < 2) check_refused(runtime, device, set, parts);
      if (rank == 2) check_goes_on(runtime);
    };
    DeviceGroup(kRanks).run(body, row.change);
  }
}

TEST_CASE("a device backend that serves no sets leaves sets to the CPU") {
  DeviceGroup(kRanks).run(
      [](int, Runtime& runtime, FakeDevice& device) {
        check_sum(runtime, device);
        const ProcessSet set = runtime.add_process_set({0, 1, 2});
        check_refused(runtime, device, set,
                      {"no backend for cuda buffers can serve a process set"});
        std::vector<float> values(2, 1.0F);
        Request request = sum_request(values, "y");
        request.set = set;
        runtime.submit(request).wait();
        check(values[1] == kRanks, "the sum on the CPU");
      },
      [](int, RuntimeOptions& options) { options.device_backends["fake"].serves_sets = false; });
}

TEST_CASE("every rank is told of a device backend that it cannot have, or that cannot be made") {
  struct Row {
    Change change;
    std::string text;
    bool is_usage_error;
  };
  const Row rows[] = {
      {[](int, RuntimeOptions& options) { options.config.gpu_backend = "carrier-pigeon"; },
       "no backend 'carrier-pigeon' for cuda buffers suits these ranks; there are: auto, fake",
       true},
      {[](int rank, RuntimeOptions& options) {
         options.config.gpu_backend = "fake";
         options.device_backends["fake"].problem = absent_on(1, "the driver is too old", rank);
       },
       "RONDE_GPU_BACKEND=fake: rank 1: the driver is too old", true},
      {fail_to_create<UsageError>, "rank 1 cannot start its backend: there is no GPU 7", true},
      {fail_to_create<Error>, "rank 1 cannot start its backend: there is no GPU 7", false}};
  for (const Row& row : rows) {
    const DeviceGroup group(kRanks);
    run_ranks(kRanks, [&](int rank) {
      RuntimeOptions options = group.options(rank);
      row.change(rank, options);
      const auto start = [&] { const Runtime runtime(std::move(options)); };
      if (row.is_usage_error) return check_contains(text_of<UsageError>(start), row.text);
      const Death death = death_of(start);
      check(death.rank == 1, "rank 1 is named");
      check_contains(death.text, row.text);
    });
  }
}
