// SPDX-License-Identifier: Apache-2.0
// Send and recv over shared memory, MPI and simulated hosts, between all ranks at once. Messages
// between random ranks, also from any of them, among other operations, are in
// random_programs_test.cc; those in process sets in process_sets_test.cc.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/oracle/plain_mpi.h"

namespace ronde::test {
namespace {

Request message_request(Collective kind, Elements& elements, int peer) {
  Request request;
  request.kind = kind;
  request.dtype = elements.dtype();
  request.shape = {static_cast<std::int64_t>(elements.count())};
  if (kind == Collective::Send) {
    request.input = elements.data();
  } else {
    request.output = elements.data();
  }
  request.peer = peer;
  return request;
}

/// Every rank sends to every other, in both directions at once.
void check_all_pairs(PlainMpi& mpi, DataType dtype, std::size_t count) {
  CAPTURE(to_string(dtype), count);
  Elements mine = make_bytes(dtype, count, mpi.rank(), count);
  std::vector<Elements> received(static_cast<std::size_t>(mpi.size()), Elements(dtype, count));
  std::vector<Work> works(static_cast<std::size_t>(mpi.size()));
  std::vector<Work> sent;
  for (int peer = 0; peer < mpi.size(); ++peer) {
    if (peer == mpi.rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    works[index] = ronde::submit(message_request(Collective::Recv, received[index], peer));
  }
  for (int step = 1; step < mpi.size(); ++step) {
    const int peer = (mpi.rank() + step) % mpi.size();
    sent.push_back(ronde::submit(message_request(Collective::Send, mine, peer)));
  }
  for (const Work& work : sent) work.wait();
  for (const Work& work : works) work.wait();
  for (int peer = 0; peer < mpi.size(); ++peer) {
    if (peer == mpi.rank()) continue;
    CHECK(works[static_cast<std::size_t>(peer)].source() == peer);
    CHECK(received[static_cast<std::size_t>(peer)] == make_bytes(dtype, count, peer, count));
  }
}

void check_messages(PlainMpi& mpi) {
  for (const DataType dtype : kAllDataTypes) {
    for (const std::size_t count : {0, 1, 1023, 5000}) check_all_pairs(mpi, dtype, count);
  }
  check_all_pairs(mpi, DataType::F32, 1'000'003);
}

TEST_CASE("messages between ranks of one host arrive as they were sent") {
  with_each_backend([](PlainMpi& mpi, const std::string& backend) {
    CAPTURE(backend);
    check_messages(mpi);
  });
}

TEST_CASE("large messages go through a fusion buffer of the usual size") {
  with_each_backend(
      [](PlainMpi& mpi, const std::string& backend) {
        CAPTURE(backend);
        for (const std::size_t count : {(1U << 20) - 1, 1U << 20, (1U << 20) + 1, 9'000'001U}) {
          check_all_pairs(mpi, DataType::U8, count);
        }
      },
      {{"RONDE_FUSION_BYTES", "64MiB"}});
}

TEST_CASE("messages between two ranks of two hosts", "[n2]") {
  // One rank each: over MPI alone.
  with_group(check_messages, {{"RONDE_HOST_ID", PlainMpi::instance().rank() == 0 ? "a" : "b"}});
}

TEST_CASE("messages between and within uneven hosts", "[n3]") {
  with_hosts("abb", check_messages);
}

TEST_CASE("messages between and within even hosts", "[n4]") {
  for (const std::string hosts : {"aabb", "abab"}) with_hosts(hosts, check_messages);
}

}  // namespace
}  // namespace ronde::test
