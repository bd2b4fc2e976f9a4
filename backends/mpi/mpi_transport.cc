// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi_transport.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/src/base/rank_list.h"
#include "ronde/error.h"

// Note [Finalizing over TCP]
// UCX 1.13 closes a connection on which this rank has sent only after the other rank has answered.
// MPICH 4.0 answers until its own connections are closed, and then waits for the other ranks in the
// launcher's barrier. If messages went one way only (along a ring or a chain), a rank may have
// closed its connections before its sender asks, and the sender waits forever. So each rank sends
// to every other one, and no rank finalizes MPI before all have received that: then every rank has
// to ask every other one, and a rank that answers has asked before. With RDMA the adapter answers.

// Note [A death in MPI_Finalize]
// MPI_Finalize waits for all ranks, forever if one dies in it, and cannot be cancelled. So the
// connections stay open until it has returned. Meanwhile the thread that waits in shutdown() asks
// the FinalizeWatch whether a rank was lost, and if so stops waiting for Ronde's thread. A rank
// that has finalised, or stops waiting, announces it, as the end of its connections is then no
// loss. A rank that learns of a failure forwards it.

namespace ronde::mpi {
namespace {

constexpr std::string_view kSettled = "settled";
constexpr std::string_view kFinalized = "finalized";
constexpr auto kPause = std::chrono::microseconds(100);

}  // namespace

MpiExchange::MpiExchange(std::shared_ptr<MpiEnvironment> environment, const MpiOptions& options,
                         MpiUse use)
    : deadline_(Clock::now() + milliseconds_of(options.init_timeout_s)),
      use_(use),
      mpi_(std::move(environment), options.ranks, use),
      communicator_(mpi_->duplicate(deadline_)),
      network_(options) {}

std::unique_ptr<Transport> MpiExchange::meet() {
  const auto leave = [this] {
    mpi_->free(communicator_);
    mpi_.leave(true);
  };
  std::unique_ptr<Transport> tree;
  try {
    tree = net::connect_ranks("mpi", {mpi_->rank(), mpi_->size()}, network_, deadline_,
                              [this](std::string_view blob) { return exchange(blob); });
  } catch (const UsageError&) {
    leave();  // as all ranks do
    throw;
  }
  leave();
  return tree;
}

MpiTransport::MpiTransport(std::shared_ptr<MpiEnvironment> environment, const MpiOptions& options)
    : MpiExchange(std::move(environment), options),
      SocketTree(net::tree_options("mpi", mpi_->rank(), mpi_->size(), network_, deadline_),
                 [this](std::string_view blob) { return exchange(blob); }),
      watch_(options.finalize_watch),
      shuts_down_in_finalize_(options.on_program_finalize != nullptr) {
  // From here on only messages of process sets use it.
  mpi_->set_message_communicator(communicator_);
  if (shuts_down_in_finalize_) mpi_->on_program_finalize(options.on_program_finalize);
}

std::vector<std::string> MpiExchange::exchange(std::string_view blob) {
  constexpr std::string_view kAlways = "a", kToMeet = "m";
  std::vector<std::string> blobs =
      gather(std::string(use_ == MpiUse::Always ? kAlways : kToMeet).append(blob));
  for (std::size_t rank = 1; rank < blobs.size(); ++rank) {
    if (blobs[rank].front() == blobs[0].front()) continue;
    const bool is_first = blobs[0].starts_with(kToMeet);
    const std::string other = rank_name(static_cast<int>(rank));
    throw UsageError((is_first ? "rank 0" : other) +
                     " initialised MPI below MPI_THREAD_MULTIPLE, and " +
                     (is_first ? other : "rank 0") + " did not: use one level on all ranks");
  }
  for (std::string& each : blobs) each.erase(0, 1);
  return blobs;
}

std::vector<std::string> MpiExchange::gather(const std::string& blob) {
  struct Buffers {
    std::string own;
    int own_length = 0;
    std::vector<int> lengths;
    std::vector<int> offsets;
    std::string all;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto ranks = static_cast<std::size_t>(mpi_->size());
  // Shared, as they have to stay if the others do not answer in time.
  const auto buffers = std::make_shared<Buffers>();
  buffers->own = blob;
  buffers->own_length = static_cast<int>(blob.size());
  buffers->lengths.resize(ranks);
  mpi_->call("MPI_Iallgather", mpi_->api().iallgather, &buffers->own_length, 1, MPI_INT,
             buffers->lengths.data(), 1, MPI_INT, communicator_, &buffers->request);
  wait_for_exchange(buffers->request, buffers);

  std::int64_t total = 0;
  for (const int length : buffers->lengths) {
    buffers->offsets.push_back(static_cast<int>(total));
    total += length;
    if (total > INT_MAX) throw Error("the ranks' bootstrap messages are above 2 GiB together");
  }
  buffers->all.resize(static_cast<std::size_t>(total));
  mpi_->call("MPI_Iallgatherv", mpi_->api().iallgatherv, buffers->own.data(), buffers->own_length,
             MPI_CHAR, buffers->all.data(), buffers->lengths.data(), buffers->offsets.data(),
             MPI_CHAR, communicator_, &buffers->request);
  wait_for_exchange(buffers->request, buffers);

  std::vector<std::string> blobs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    blobs.emplace_back(buffers->all, static_cast<std::size_t>(buffers->offsets[rank]),
                       static_cast<std::size_t>(buffers->lengths[rank]));
  }
  return blobs;
}

void MpiExchange::wait_for_exchange(MPI_Request& request, std::shared_ptr<void> buffers) {
  const auto start = Clock::now();
  if (mpi_->wait(request, deadline_)) return;
  keep_until_exit(std::move(buffers));
  mpi_->abandon();
  mpi_->fail_waiting("exchange their addresses over MPI",
                     std::chrono::round<std::chrono::seconds>(Clock::now() - start));
}

/// Implements Note [Finalizing over TCP]. False if a neighbour is lost, or the deadline has passed.
bool MpiTransport::exchange_before_finalize(Clock::time_point deadline) {
  struct Buffers {
    std::vector<char> sent, received;
    std::vector<int> ones, places;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto ranks = static_cast<std::size_t>(mpi_->size());
  const auto buffers = std::make_shared<Buffers>();
  buffers->sent.resize(ranks);
  buffers->received.resize(ranks);
  buffers->ones.assign(ranks, 1);
  buffers->places.resize(ranks);
  std::iota(buffers->places.begin(), buffers->places.end(), 0);
  mpi_->call("MPI_Ialltoallv", mpi_->api().ialltoallv, buffers->sent.data(), buffers->ones.data(),
             buffers->places.data(), MPI_CHAR, buffers->received.data(), buffers->ones.data(),
             buffers->places.data(), MPI_CHAR, communicator_, &buffers->request);

  keep_until_exit(buffers);  // as the call may never end

  std::set<int> missing;
  const auto receive_one = [&] {
    const auto now = Clock::now();
    const Incoming incoming = receive(std::min(deadline, now + kPause));
    if (incoming.bytes == kSettled) missing.erase(incoming.peer);
    const bool fails = forward_failure(incoming) || incoming.kind == Incoming::Kind::PeerLost;
    return !fails && now < deadline;
  };
  for (const int child : topology().children()) missing.insert(child);
  for (bool finished = false; !finished || !missing.empty();) {
    if (!finished) finished = mpi_->test(buffers->request);
    if (receive_one()) continue;
    mpi_->abandon();
    return false;
  }
  if (topology().rank != 0) {
    missing.insert(topology().parent());
    send(topology().parent(), kSettled);
    while (!missing.empty()) {
      if (!receive_one()) return false;
    }
  }
  for (const int child : topology().children()) send(child, kSettled);
  return true;
}

void MpiTransport::close(bool graceful, Clock::time_point deadline) {
  const bool all_finished = graceful;
  try {
    if (graceful && topology().hosts() > 1 && mpi_->closing_asks_peers()) {
      graceful = exchange_before_finalize(deadline);
    }
    mpi_->set_message_communicator(MPI_COMM_NULL);
    if (graceful) {
      mpi_->free(communicator_);
      leave_mpi();
    }
  } catch (const std::exception&) {
    SocketTree::close(false, deadline);
    throw;
  }
  if (all_finished) send_to_neighbours(-1, kFinalized);
  SocketTree::close(graceful, deadline);
  if (shuts_down_in_finalize_) mpi_->on_program_finalize(nullptr);
  mpi_.leave(false);
}

/// Lets the FinalizeWatch find lost ranks meanwhile: Note [A death in MPI_Finalize].
void MpiTransport::leave_mpi() {
  watch_->set([this] { return lost_in_finalize(); });
  const std::shared_ptr<void> end_of_watch(nullptr, [this](void*) { watch_->set(nullptr); });
  mpi_.leave(true);
}

std::optional<GroupError> MpiTransport::lost_in_finalize() {
  for (;;) {
    const Incoming incoming = poll();
    if (incoming.kind == Incoming::Kind::Nothing) return std::nullopt;
    if (const auto failure = forward_failure(incoming)) {
      return GroupError(failure->rank, failure->text);
    }
  }
}

/// Returns the failure that `incoming` reports, if any, after forwarding it to the neighbours.
std::optional<FailureMessage> MpiTransport::forward_failure(const Incoming& incoming) {
  const std::string_view bytes = incoming.bytes;
  FailureMessage failure;
  if (incoming.kind == Incoming::Kind::PeerLost) {
    if (finalized_.contains(incoming.peer)) return std::nullopt;
    failure = {incoming.peer, "rank " + std::to_string(incoming.peer) +
                                  " was lost while MPI was finalised: " + incoming.bytes};
  } else if (bytes == kFinalized) {
    finalized_.insert(incoming.peer);
    return std::nullopt;
  } else {
    if (bytes.empty() || bytes == kSettled) return std::nullopt;
    const Message message = decode(bytes);
    const auto* const received = std::get_if<FailureMessage>(&message);
    if (received == nullptr) return std::nullopt;
    failure = *received;
  }
  send_to_neighbours(incoming.peer, encode(failure));
  return failure;
}

void MpiTransport::send_to_neighbours(int all_but, std::string_view message) {
  std::vector<int> neighbours = topology().children();
  if (topology().rank != 0) neighbours.push_back(topology().parent());
  std::erase(neighbours, all_but);
  for (const int neighbour : neighbours) send(neighbour, message);
}

}  // namespace ronde::mpi
