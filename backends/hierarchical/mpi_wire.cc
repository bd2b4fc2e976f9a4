// SPDX-License-Identifier: Apache-2.0
#include "backends/hierarchical/mpi_wire.h"

namespace ronde::hierarchical {

void MpiWire::send(std::size_t batch, std::size_t host, Kind kind, const std::byte* from,
                   std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_->call("MPI_Isend", mpi_->api().isend, static_cast<const void*>(from),
             static_cast<int>(bytes), MPI_BYTE, peers_[host], static_cast<int>(kind), communicator_,
             &request);
  batches_[batch].push_back(request);
}

void MpiWire::receive(std::size_t batch, std::size_t host, Kind kind, std::byte* to,
                      std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_->call("MPI_Irecv", mpi_->api().irecv, static_cast<void*>(to), static_cast<int>(bytes),
             MPI_BYTE, peers_[host], static_cast<int>(kind), communicator_, &request);
  batches_[batch].push_back(request);
}

bool MpiWire::done(std::size_t batch) {
  std::vector<MPI_Request>& requests = batches_[batch];
  while (!requests.empty()) {
    if (!mpi_->test(requests.back())) return false;
    requests.pop_back();
  }
  return true;
}

}  // namespace ronde::hierarchical
