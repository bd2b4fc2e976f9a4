// SPDX-License-Identifier: Apache-2.0
#include "tests/support/oracle/plain_mpi.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ronde/ronde.h"

namespace ronde::test {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(code));
  }
}

/// MPICH's blocking calls spin, which costs a time slice each where ranks outnumber cores.
void finish(MPI_Request request) {
  int finished = 0;
  while (finished == 0) {
    check(MPI_Test(&request, &finished, MPI_STATUS_IGNORE), "MPI_Test");
    if (finished == 0) std::this_thread::yield();
  }
}

template <typename Number>
std::vector<Number> gather_numbers(const std::vector<Number>& numbers, MPI_Datatype type,
                                   MPI_Comm communicator, int size) {
  std::vector<Number> all(numbers.size() * static_cast<std::size_t>(size));
  const int count = static_cast<int>(numbers.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(
      MPI_Iallgather(numbers.data(), count, type, all.data(), count, type, communicator, &request),
      "MPI_Iallgather");
  finish(request);
  return all;
}

}  // namespace

PlainMpi& PlainMpi::instance() {
  static PlainMpi mpi;
  return mpi;
}

PlainMpi::PlainMpi() {
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided != MPI_THREAD_MULTIPLE) throw std::runtime_error("no MPI_THREAD_MULTIPLE");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup");
  check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
}

PlainMpi::~PlainMpi() {
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized == 0) MPI_Finalize();
}

void PlainMpi::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(communicator_, &request), "MPI_Ibarrier");
  finish(request);
}

std::vector<std::int64_t> PlainMpi::gather(const std::vector<std::int64_t>& numbers) {
  return gather_numbers(numbers, MPI_INT64_T, communicator_, size_);
}

std::vector<std::string> PlainMpi::gather(const std::string& text) {
  const std::vector<std::int64_t> lengths =
      gather(std::vector{static_cast<std::int64_t>(text.size())});
  std::vector<char> padded(text.begin(), text.end());
  padded.resize(static_cast<std::size_t>(*std::ranges::max_element(lengths)));
  const std::vector<char> all = gather_numbers(padded, MPI_CHAR, communicator_, size_);
  std::vector<std::string> texts;
  for (const std::int64_t length : lengths) {
    const char* const begin = all.data() + texts.size() * padded.size();
    texts.emplace_back(begin, static_cast<std::size_t>(length));
  }
  return texts;
}

bool PlainMpi::same_everywhere(std::span<const std::byte> bytes) {
  std::vector<std::byte> of_root(bytes.begin(), bytes.end());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibcast(of_root.data(), static_cast<int>(of_root.size()), MPI_BYTE, 0, communicator_,
                   &request),
        "MPI_Ibcast");
  finish(request);
  int same = std::ranges::equal(of_root, bytes) ? 1 : 0;
  check(MPI_Iallreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, communicator_, &request),
        "MPI_Iallreduce");
  finish(request);
  return same == 1;
}

void with_group(const std::function<void(PlainMpi& mpi)>& body, const Variables& variables) {
  PlainMpi& mpi = PlainMpi::instance();
  std::map<std::string, std::string> settings = {{"RONDE_LOG_LEVEL", "off"},
                                                 {"RONDE_FUSION_BYTES", "4KiB"}};
  for (const auto& [name, value] : variables) settings[name] = value;
  for (const auto& [name, value] : settings) setenv(name.c_str(), value.c_str(), 1);
  ronde::init();
  for (const auto& [name, value] : settings) unsetenv(name.c_str());
  body(mpi);
  ronde::shutdown();
}

void with_hosts(const std::string& hosts, const std::function<void(PlainMpi& mpi)>& body,
                const Variables& variables) {
  const auto rank = static_cast<std::size_t>(PlainMpi::instance().rank());
  Variables with_host = variables;
  with_host.emplace_back("RONDE_CPU_BACKEND", "hierarchical");
  with_host.emplace_back("RONDE_HOST_ID", std::string(1, hosts.at(rank)));
  with_group(body, with_host);
}

void with_each_backend(const std::function<void(PlainMpi& mpi, const std::string& backend)>& body,
                       const Variables& variables) {
  for (const std::string backend : {"shm", "mpi"}) {
    Variables with_backend = variables;
    with_backend.emplace_back("RONDE_CPU_BACKEND", backend);
    with_group([&](PlainMpi& mpi) { body(mpi, backend); }, with_backend);
  }
}

}  // namespace ronde::test
