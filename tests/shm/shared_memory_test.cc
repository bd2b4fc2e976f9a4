// SPDX-License-Identifier: Apache-2.0
// Memory that is really shared, and the backend as its factory makes it.
#include "backends/shm/memory/shared_memory.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "backends/shm/shm.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "ronde/error.h"
#include "ronde/runtime.h"
#include "tests/shm/group.h"
#include "tests/support/processes/file_limit.h"
#include "tests/support/ranks/results_of_ranks.h"

namespace ronde::test {
namespace {

using shm::share_descriptors;
using shm::share_memory;

shm::Meeting meeting_of(const BackendContext& context) {
  return {*context.topology, context.exchange};
}

TEST_CASE("the ranks of each host share zeroed memory that has no name") {
  constexpr std::size_t kBytes = 100'000;
  const std::vector<int> host_of = {0, 1, 0, 0, 1};
  run_contexts(host_of, [&](int rank, const BackendContext& context) {
    const auto memory = share_memory(meeting_of(context), kBytes);
    check(memory.bytes().size() == kBytes, "its size");
    check(std::all_of(memory.bytes().begin(), memory.bytes().end(),
                      [](std::byte byte) { return byte == std::byte{0}; }),
          "it is zeroed");
    context.exchange({});
    memory.bytes()[static_cast<std::size_t>(context.topology->local_rank)] =
        static_cast<std::byte>(rank + 1);
    context.exchange({});
    std::size_t local = 0;
    for (std::size_t other = 0; other < host_of.size(); ++other) {
      if (host_of[other] != host_of[static_cast<std::size_t>(rank)]) continue;
      check(memory.bytes()[local++] == static_cast<std::byte>(other + 1), "what another wrote");
    }
    std::ifstream maps("/proc/self/maps");
    std::string text(std::istreambuf_iterator<char>(maps), {});
    check_contains(text, "/memfd:ronde (deleted)");
    context.exchange({});
  });
}

void check_descriptors(const std::vector<int>& host_of) {
  run_contexts(host_of, [&](int rank, const BackendContext& context) {
    const UniqueFd own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const auto all = share_descriptors(meeting_of(context), own.get());
    check(all.size() == static_cast<std::size_t>(context.topology->local_size), "one of each");
    // Every rank adds its number to every counter.
    const std::uint64_t number = static_cast<std::uint64_t>(rank) + 1;
    for (const UniqueFd& fd : all) {
      check(::write(fd.get(), &number, sizeof number) == sizeof number, "it can be written to");
    }
    context.exchange({});
    std::uint64_t expected = 0;
    for (std::size_t other = 0; other < host_of.size(); ++other) {
      if (host_of[other] == host_of[static_cast<std::size_t>(rank)]) expected += other + 1;
    }
    std::uint64_t sum = 0;
    check(::read(own.get(), &sum, sizeof sum) == sizeof sum, "it can be read");
    check(sum == expected, std::to_string(sum) + " is " + std::to_string(expected));
  });
}

TEST_CASE("the ranks of each host get each other's descriptors") {
  check_descriptors({0});
  check_descriptors({0, 0});
  check_descriptors({0, 1, 1, 0, 1});
  check_descriptors(std::vector<int>(30, 0));
}

void check_group_error(int failed, const std::string& words,
                       const std::function<void(int, const BackendContext&)>& action) {
  std::vector<Death> deaths(3);
  run_contexts({0, 0, 0}, [&](int rank, const BackendContext& context) {
    deaths[static_cast<std::size_t>(rank)] = death_of([&] { action(rank, context); });
  });
  check_same_death(deaths, failed, {"rank " + std::to_string(failed) + " cannot ", words});
}

TEST_CASE("a failure of one rank fails all ranks, with its name and reason") {
  check_group_error(0, "ftruncate", [](int, const BackendContext& context) {
    share_memory(meeting_of(context), std::size_t{1} << 63);
  });
  check_group_error(1, "bytes, not", [](int rank, const BackendContext& context) {
    share_memory(meeting_of(context), rank == 1 ? 8192 : 4096);
  });
  check_group_error(2, "sending a file descriptor", [](int rank, const BackendContext& context) {
    const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
    share_descriptors(meeting_of(context), rank == 2 ? -1 : fd.get());
  });
}

TEST_CASE("a descriptor that finds no room says so, at the sender and at the receiver") {
  run_contexts({0, 0}, [](int rank, const BackendContext& context) {
    shm::DescriptorMail mail(meeting_of(context));
    if (rank == 1) mail.send(0, STDERR_FILENO);
    context.exchange({});
    if (rank == 0) {
      const auto lowest_free = static_cast<rlim_t>(UniqueFd(::dup(STDERR_FILENO)).get());
      const ResourceLimit limit(RLIMIT_NOFILE, lowest_free);
      const std::string words =
          "too many open files (ulimit -n is " + std::to_string(lowest_free) + ")";
      check_equal(text_of<Error>([&] { static_cast<void>(mail.receive(1)); }),
                  "receiving the file descriptor of local rank 1: " + words, "the receiver's text");
      check_contains(text_of<Error>([&] { shm::OfferedMemory(4096); }), words);
    }
    context.exchange({});
    check_contains(text_of<Error>([&] { static_cast<void>(mail.receive(0)); }),
                   "no file descriptor came from local rank 0");
  });
}

TEST_CASE("a rank that brings to a start what cannot be read is named") {
  const std::vector<std::string> sizes = {"garbage", pack_fields({""}), pack_fields({"", "many"}),
                                          pack_fields({"", ""})};
  for (const std::string& bytes : sizes) {
    run_contexts({0, 0}, [&](int rank, const BackendContext& context) {
      if (rank == 0) {
        context.exchange(bytes);
        return;
      }
      const Death death = death_of([&] {
        BackendContext mine = context;
        shm_backend_factory().create(mine);
      });
      check_equal(death.rank, 0, "the rank that sent it");
      check_contains(death.text, "rank 0 sent a bootstrap message that cannot be read");
    });
  }
}

void send_to(const std::string& socket_name, const std::string& text) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const net::Address address = net::unix_address(socket_name);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  const ssize_t sent = ::sendto(socket.get(), text.data(), text.size(), 0, to, address.length);
  check(sent == static_cast<ssize_t>(text.size()), "a stranger can write to the socket");
}

TEST_CASE("a stranger's messages are dropped") {
  run_contexts({0, 0}, [](int rank, const BackendContext& context) {
    BackendContext spied = context;
    int exchanges = 0;
    spied.exchange = [&](std::string_view blob) {
      const auto blobs = context.exchange(blob);
      // After the first exchange the addresses are known. The stranger saw them in
      // /proc/net/unix, and guesses the rest.
      if (exchanges++ == 0 && rank == 1) {
        const std::string address =
            unpack_fields_from(1, unpack_fields_from(1, blobs[1], 2)[1], 1)[0];
        send_to(address, "");
        send_to(address, std::string(300, 'x'));
        send_to(address, pack_fields({std::string(16, 'a'), "0"}));
      }
      return blobs;
    };
    const auto memory = share_memory(meeting_of(spied), 4096);
    memory.bytes()[static_cast<std::size_t>(rank)] = std::byte{5};
    context.exchange({});
    check(memory.bytes()[0] == memory.bytes()[1], "the memory is common");
  });
}

TEST_CASE("offered memory is mapped by all that get the offer, and outlives it") {
  auto offered = std::make_unique<shm::OfferedMemory>(8192);
  const shm::MemoryOffer offer = offered->offer();
  const shm::SharedMemory one = map_offered(offer);
  const shm::SharedMemory other = map_offered(offer);
  shm::MemoryOffer wrong = offer;
  ++wrong.inode;
  CHECK_THROWS_WITH(map_offered(wrong), Catch::Contains("is another file here"));
  wrong = offer;
  wrong.bytes = 4096;
  CHECK_THROWS_WITH(map_offered(wrong), Catch::Contains("has 8192 bytes, not 4096"));
  offered.reset();
  CHECK_THROWS_WITH(map_offered(offer), Catch::Contains("/proc/"));
  REQUIRE(one.bytes().size() == 8192);
  CHECK(one.bytes().data() != other.bytes().data());
  CHECK(std::ranges::all_of(one.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  one.bytes()[8191] = std::byte{7};
  CHECK(other.bytes()[8191] == std::byte{7});
}

TEST_CASE("ranks reduce and send through really shared memory, wake their peers, and count it") {
  run_contexts({0, 0, 0}, [](int rank, const BackendContext& context) {
    BackendContext counting = context;
    int notifications = 0;
    counting.notify_peers = [&] { ++notifications; };
    const auto backend = shm_backend_factory({.slot_bytes = 64 << 10}).create(counting);
    check(backend->name() == "shm", "its name");
    check(shm_backend_factory().priority > 10, "it comes before that of MPI");
    check(backend->capabilities().waiting == Waiting::Bell, "it notifies");
    std::vector<float> values(200'000, static_cast<float>(rank));
    const Segment segment{values.data(), values.data(), 100'000};
    finish(*backend->allreduce({.segments = {&segment, 1}, .final = {1.0, 3.0}}));
    check(values.front() == 1.0F && values[99'999] == 1.0F, "the average of 0, 1 and 2");
    check(notifications > 0, "peers were notified");
    check(backend->stats().part == "shm", "the name of its statistics");
    check(counter_of(backend->stats(), "operations") == 1, "one operation");
    check(counter_of(backend->stats(), "rounds") >= 4, "of several rounds");
    check(counter_of(backend->stats(), "staged_bytes") >= 400'000 * 2 / 3 - 1000,
          "by the slot buffer");
    check(counter_of(backend->stats(), "slot_buffer_bytes") < (std::uint64_t{64} << 20),
          "which is small");
    context.exchange({});
    const int before = notifications;
    if (rank < 2) {
      finish(*(rank == 0 ? backend->send({.input = values.data(), .count = 200'000, .peer = 1})
                         : backend->recv({.output = values.data(), .count = 200'000, .peer = 0})));
      check(notifications - before >= 10, "once for each slot");
      check(counter_of(backend->stats(), "messages") == 1, "one message");
      check(counter_of(backend->stats(), "message_bytes") == 800'000, "its bytes");
    }
    context.exchange({});
    backend->close();
  });
}

TEST_CASE("a heap beyond the limit on files is done without, with a warning") {
  const FileLimit limit(rlim_t{8} << 20);
  run_contexts({0, 0}, [](int, const BackendContext& context) {
    BackendContext warned = context;
    std::string warning;
    warned.warn = [&](const std::string& text) { warning += text; };
    warned.symmetric_heap_bytes = std::uint64_t{1} << 30;
    const auto backend = shm_backend_factory().create(warned);
    check(backend->symmetric_heap() == nullptr, "there is no heap");
    check_contains(warning, "(ulimit -f)");
    check_contains(warning, "RONDE_SYMMETRIC_HEAP_BYTES");
    warned.symmetric_heap_bytes = std::uint64_t{1} << 20;
    check(shm_backend_factory().create(warned)->symmetric_heap() != nullptr, "a small one");
  });
}

TEST_CASE("a rank that is lost while memory is shared is not passed over") {
  for (int lost_in = 1;; ++lost_in) {
    std::atomic<int> made = 0;
    run_contexts({0, 0}, [&](int, const BackendContext& context) {
      BackendContext losing = context;
      losing.symmetric_heap_bytes = std::uint64_t{1} << 20;
      int exchanges = 0;
      losing.exchange = [&](std::string_view blob) {
        if (++exchanges == lost_in) throw GroupError(1, "rank 1 was lost");
        return context.exchange(blob);
      };
      try {
        shm_backend_factory().create(losing);
        ++made;
      } catch (const GroupError& error) {
        check(std::string(error.what()) == "rank 1 was lost", error.what());
      }
    });
    if (made > 0) {
      CHECK(made == 2);
      CHECK(lost_in > 6);  // both memories take several exchanges
      break;
    }
  }
}

TEST_CASE("the slot buffer takes less than 64 MiB, with larger slots where ranks share cores") {
  for (const std::size_t cores : {1U, 64U}) {
    for (std::size_t ranks = 1; ranks <= 64; ++ranks) {
      CHECK(shm::slot_buffer_shape({}, ranks, cores).bytes() < std::size_t{64} << 20);
    }
  }
  CHECK(shm::slot_buffer_shape({}, 4, 2).slot_bytes > shm::slot_buffer_shape({}, 4, 4).slot_bytes);
  CHECK(shm::slot_buffer_shape({.slot_bytes = 192}, 4, 2).slot_bytes == 192);
}

TEST_CASE("operations that a dead peer left unfinished can be dropped after the backend") {
  run_contexts({0, 0}, [](int rank, const BackendContext& context) {
    auto backend = shm_backend_factory().create(const_cast<BackendContext&>(context));
    if (rank == 1) return;  // never takes part
    std::vector<double> values(300'000, 1.0);
    const std::size_t count = values.size();
    const Segment segment{values.data(), values.data(), count};
    constexpr DataType kType = DataType::F64;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(backend->allreduce({.segments = {&segment, 1}, .dtype = kType}));
    operations.push_back(
        backend->send({.input = values.data(), .count = count, .dtype = kType, .peer = 1}));
    operations.push_back(
        backend->recv({.output = values.data(), .count = count, .dtype = kType, .peer = 1}));
    for (int i = 0; i < 1000; ++i) {
      for (const auto& each : operations) check(!each->poll(), "it waits for the other rank");
    }
    backend->abort();
    values = {};
    backend.reset();
    operations.clear();
  });
}

TEST_CASE("a wrong slot buffer, and wrong outboxes, are refused") {
  for (const ShmOptions& options : std::vector<ShmOptions>{
           {.slots = 0}, {.slots = 17}, {.slot_bytes = 8}, {.slot_bytes = 100}}) {
    CHECK_THROWS_AS(run_backends(2, options, [](int, shm::ShmBackend&) {}), Error);
  }
  std::vector<std::byte> memory(1 << 10);
  for (const std::size_t slots : {17, 0, 4}) {
    CHECK_THROWS_AS(shm::Outboxes(memory, {2, slots, 64}, 0, [] {}), Error);
  }
}

}  // namespace
}  // namespace ronde::test
