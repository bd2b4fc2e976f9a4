// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "backends/ucx/ucx_fabric.h"
#include "tests/support/ranks/fabric_contract.h"
#include "tests/ucx/ucx_ranks.h"

namespace ronde::test {
namespace {

namespace contract = fabric_contract;

TEST_CASE("ucx carries messages of all sizes, tags and batches between all ranks") {
  contract::check_sizes(make_ucx_fabrics, 2);
  contract::check_sizes(make_ucx_fabrics, 4);
  contract::check_order(make_ucx_fabrics);
  contract::check_tags(make_ucx_fabrics);
  contract::check_many(make_ucx_fabrics);
  contract::check_batches(make_ucx_fabrics);
  contract::check_nothing(make_ucx_fabrics);
}

TEST_CASE("ucx refuses messages of another size and names their sender") {
  constexpr std::pair<std::size_t, std::size_t> kSizes[] = {
      {8, 16}, {16, 8}, {100000, 99999}, {100000, 100001}, {3U << 20, 10}, {10, 3U << 20}};
  for (const auto& [one, other] : kSizes) contract::check_wrong_size(make_ucx_fabrics, one, other);
}

TEST_CASE("a thread that sleeps on the descriptor of ucx wakes for a message") {
  contract::check_sleep(make_ucx_fabrics, [](int descriptor) {
    pollfd entry{descriptor, POLLIN, 0};
    check_equal(::poll(&entry, 1, 20'000), 1, "the number of ready descriptors");
  });
}

TEST_CASE("ucx leaves alone what another job sends to it") {
  const auto api = ucx::load_ucx(vendor::dynamic_symbols()).api;
  std::vector<std::shared_ptr<ucx::UcxWorker>> workers;
  for (int rank : {0, 1}) workers.push_back(std::make_shared<ucx::UcxWorker>(api, rank, 2));
  for (const auto& worker : workers) {
    worker->set_addresses({workers[0]->address(), workers[1]->address()});
  }
  ucx::UcxFabric foreign(workers[0], 7);
  ucx::UcxFabric own(workers[0], 8);
  ucx::UcxFabric receiver(workers[1], 8);
  unsigned char bytes[3] = {1, 2, 0};
  const auto foreign_batch = foreign.make_batch(nullptr);
  const auto own_batch = own.make_batch(nullptr);
  const auto received = receiver.make_batch(nullptr);
  foreign_batch->send(1, {}, &bytes[0], 1);
  own_batch->send(1, {}, &bytes[1], 1);
  received->receive(0, {}, &bytes[2], 1);
  while (!received->poll()) {
    static_cast<void>(own_batch->poll());
  }
  CHECK(bytes[2] == 2);
}

TEST_CASE("what ucx keeps of a group that has failed is freed as the next one starts") {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  std::weak_ptr<void> kept, packed;
  const auto fail = [&] {
    std::shared_ptr<Fabric> fabric = std::move(make_ucx_fabrics(2)[0]);
    struct Memory {
      std::shared_ptr<Fabric> owner;
      std::vector<char> bytes;
    };
    const auto memory = std::make_shared<Memory>(Memory{fabric, std::vector<char>(1 << 20)});
    const auto batch = fabric->make_batch(memory);
    batch->receive(1, {}, memory->bytes.data(), memory->bytes.size());
    batch->send(1, {}, memory->bytes.data(), memory->bytes.size());
    fabric->abort();
    const auto buffer = std::make_shared<std::vector<char>>(1 << 20);
    CHECK(fabric->keep(buffer));
    kept = memory;
    packed = buffer;
  };
  fail();
  CHECK_FALSE(kept.expired());
  const auto before = descriptors();
  for (int group = 0; group < 5; ++group) {
    CHECK_FALSE(packed.expired());
    const auto last = kept;
    const auto last_packed = packed;
    fail();
    CHECK((last.expired() && last_packed.expired()));
  }
  CHECK(descriptors() < before + 5);  // each has seven; a connection may come late
}

TEST_CASE("ucx refuses a tag that does not fit") {
  auto fabrics = make_ucx_fabrics(2);
  const auto batch = fabrics[0]->make_batch(nullptr);
  char byte = 0;
  CHECK_THROWS_AS(batch->send(1, {fabrics[0]->channels(), 0}, &byte, 1), Error);
  CHECK_THROWS_AS(batch->receive(1, {0, Fabric::kStreams}, &byte, 1), Error);
  CHECK(batch->poll());
}

TEST_CASE("a machine without ucx is told what to do") {
  const vendor::SymbolLookup nothing = [](const char* library, const char*, std::string& error) {
    error = std::string(library) + ": cannot open shared object file";
    return nullptr;
  };
  CHECK(ucx_problem(nothing) ==
        "UCX cannot be loaded: libucp.so.0: cannot open shared object file. Install it (Debian: "
        "libucx0), or have LD_LIBRARY_PATH name its folder");
  CHECK(ucx_version(nothing).empty());
  const Topology topology;
  BackendContext context;
  context.topology = &topology;
  // All other ranks throw what this rank sends.
  std::string sent;
  context.exchange = [&](std::string_view blob) {
    sent = blob;
    return std::vector<std::string>{sent};
  };
  CHECK_THROWS_WITH(ucx_fabric_maker({.symbols = nothing})(context),
                    Catch::Contains("rank 0 cannot use UCX: UCX cannot be loaded: libucp.so.0"));
  context.exchange = [&](std::string_view blob) {
    return std::vector<std::string>{std::string(blob), sent};
  };
  CHECK_THROWS_WITH(ucx_fabric_maker({})(context),
                    Catch::Contains("rank 1 cannot use UCX: UCX cannot be loaded"));
}

TEST_CASE("a ucx that is too old is named") {
  static const auto old_version = [](unsigned* major, unsigned* minor, unsigned* release) {
    *major = 1;
    *minor = 9;
    *release = 2;
  };
  const vendor::SymbolLookup old = [](const char*, const char* symbol, std::string& error) {
    error = "no such symbol";
    void (*const function)(unsigned*, unsigned*, unsigned*) = old_version;
    return std::strcmp(symbol, "ucp_get_version") == 0 ? reinterpret_cast<void*>(function)
                                                       : nullptr;
  };
  CHECK(ucx_problem(old) ==
        "libucp.so.0 is UCX 1.9.2, Ronde needs 1.12 or a newer version 1. Install one");
  CHECK(ucx_version(old) == "1.9.2");
  CHECK(ucx_problem() == "");  // of the one that is found here
  CHECK(ucx_version().starts_with("1."));
}

}  // namespace
}  // namespace ronde::test
