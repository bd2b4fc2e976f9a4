// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/src/base/problem.h"
#include "core/src/submit/request_meta.h"
#include "ronde/request.h"

namespace ronde {

/// Checks what rank `rank` of `size` alone can see of its send or recv.
Problem message_error(const Request& request, int rank, int size);

/// The mismatch of a send and the recv that it meets, with both requests. `sender` and `receiver`:
/// names of these ranks.
Problem message_mismatch(const std::string& sender, const RequestMeta& send,
                         const std::string& receiver, const RequestMeta& recv);

}  // namespace ronde
