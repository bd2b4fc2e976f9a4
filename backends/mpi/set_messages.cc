// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/set_messages.h"

#include <algorithm>

namespace ronde::mpi {

SetOperation::~SetOperation() {
  if (!state_->requests.empty()) keep_for_ever(state_);
}

bool SetOperation::poll() {
  for (;;) {
    std::vector<MPI_Request>& requests = state_->requests;
    while (!requests.empty()) {
      if (!channel_->environment->test(requests.back())) return false;
      requests.pop_back();
      ++ended_;
    }
    if (next_ == steps_.size()) return true;
    steps_[next_++](*this);
  }
}

void SetOperation::send(std::size_t peer, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, channel_->max_count);
    MPI_Request request = MPI_REQUEST_NULL;
    channel_->environment->call("MPI_Isend", channel_->environment->api().isend,
                                static_cast<const void*>(from), static_cast<int>(count), MPI_BYTE,
                                channel_->peers[peer], channel_->tag, channel_->communicator,
                                &request);
    state_->requests.push_back(request);
    from += count;
    bytes -= count;
  }
}

void SetOperation::receive(std::size_t peer, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, channel_->max_count);
    MPI_Request request = MPI_REQUEST_NULL;
    channel_->environment->call("MPI_Irecv", channel_->environment->api().irecv,
                                static_cast<void*>(to), static_cast<int>(count), MPI_BYTE,
                                channel_->peers[peer], channel_->tag, channel_->communicator,
                                &request);
    state_->requests.push_back(request);
    to += count;
    bytes -= count;
  }
}

std::byte* SetOperation::scratch(std::size_t bytes) {
  return state_->scratch.emplace_back(bytes).data();
}

}  // namespace ronde::mpi
