// SPDX-License-Identifier: Apache-2.0
// An operation is a list of steps. poll() takes the next step when all messages of the steps before
// it have ended; a step posts messages and combines what has arrived.
#include "backends/mpi/set_messages.h"

#include <algorithm>
#include <type_traits>

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

template <typename Function, typename Bytes>
void SetOperation::start(const char* name, const Function& function, std::size_t peer, Bytes* data,
                         std::size_t bytes) {
  using Void = std::conditional_t<std::is_const_v<Bytes>, const void, void>;
  while (bytes > 0) {
    const std::size_t count = std::min(bytes, channel_->max_count);
    MPI_Request request = MPI_REQUEST_NULL;
    channel_->environment->call(name, function, static_cast<Void*>(data), static_cast<int>(count),
                                MPI_BYTE, channel_->peers[peer], channel_->tag,
                                channel_->communicator, &request);
    state_->requests.push_back(request);
    data += count;
    bytes -= count;
  }
}

void SetOperation::send(std::size_t peer, const std::byte* from, std::size_t bytes) {
  start("MPI_Isend", channel_->environment->api().isend, peer, from, bytes);
}

void SetOperation::receive(std::size_t peer, std::byte* to, std::size_t bytes) {
  start("MPI_Irecv", channel_->environment->api().irecv, peer, to, bytes);
}

std::byte* SetOperation::scratch(std::size_t bytes) {
  return state_->scratch.emplace_back(bytes).data();
}

}  // namespace ronde::mpi
