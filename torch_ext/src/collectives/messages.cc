// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "ronde/error.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/autograd/autograd.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

/// "rank 2: ronde::send(to rank 1)", or "(from rank 1)" or "(from any rank)"
std::string caller(const char* function, const char* direction, int peer, ProcessSet set) {
  const std::string other = peer == kAnyRank ? "any rank" : "rank " + std::to_string(peer);
  return detail::rank_prefix(set) + "ronde::" + function + "(" + direction + " " + other + ")";
}

}  // namespace

TensorWork send_async(const at::Tensor& tensor, const SendOptions& options) {
  detail::check_tensor(caller("send", "to", options.peer, options.process_set), tensor);
  return detail::start(
      detail::prepare_sending(detail::request_for(Collective::Send, tensor, options), tensor));
}

void send(const at::Tensor& tensor, const SendOptions& options) {
  const detail::CallerWaits waits;
  send_async(tensor, options).wait();
}

TensorWork recv_async_(const at::Tensor& tensor, const RecvOptions& options) {
  const std::string what = caller("recv_", "from", options.peer, options.process_set);
  if (detail::is_recorded_in_place(tensor)) {
    throw UsageError(what + " (" + detail::describe(tensor) +
                     "): autograd computed this tensor and cannot record that a message "
                     "overwrites it. Pass tensor.detach(), or receive into a new tensor");
  }
  detail::check_writable(what, tensor);
  return detail::start_in_place(detail::request_for(Collective::Recv, tensor, options), tensor,
                                false);
}

int recv_(const at::Tensor& tensor, const RecvOptions& options) {
  const detail::CallerWaits waits;
  const TensorWork work = recv_async_(tensor, options);
  work.wait();
  return work.source();
}

}  // namespace ronde
