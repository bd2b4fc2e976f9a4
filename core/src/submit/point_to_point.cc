// SPDX-License-Identifier: Apache-2.0
#include "core/src/submit/point_to_point.h"

#include "core/src/base/rank_list.h"

namespace ronde {

Problem message_error(const Request& request, int rank, int size) {
  const bool sends = request.kind == Collective::Send;
  if (!request.name.empty()) return "messages have no name; ranks and tag tell which is which";
  if (request.tag < 0) return "tag " + std::to_string(request.tag) + " is negative";
  const bool from_any = !sends && request.peer == kAnyRank;
  if (!from_any && (request.peer < 0 || request.peer >= size)) {
    return "peer " + std::to_string(request.peer) + " is out of range: there are ranks 0 to " +
           std::to_string(size - 1) + (sends ? "" : ", or kAnyRank");
  }
  if (request.peer == rank) return "peer " + std::to_string(rank) + " is this rank itself";
  if (from_any && size == 1) return "there is no other rank";
  if (Problem error = shape_error(request.shape, request.dtype)) return error;
  if (element_count(request.shape) == 0) return std::nullopt;
  if (sends && request.input == nullptr) return "input is null";
  if (!sends && request.output == nullptr) return "output is null";
  return std::nullopt;
}

Problem message_mismatch(const std::string& sender, const RequestMeta& send,
                         const std::string& receiver, const RequestMeta& recv) {
  const bool match = send.dtype == recv.dtype && send.device == recv.device &&
                     element_count(send.shape) == element_count(recv.shape);
  if (match) return std::nullopt;
  return "the message from " + sender + " to " + receiver + " (tag " + std::to_string(send.tag) +
         ") differs between them:\n  " + sender + ": " + to_string(send) + "\n  " + receiver +
         ": " + to_string(recv) +
         "\nBoth must give as many elements, of the same type and on the same kind of device";
}

}  // namespace ronde
