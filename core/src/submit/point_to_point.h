// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/src/submit/request_meta.h"
#include "ronde/request.h"

namespace ronde {

/// What rank `rank` of `size` alone can see to be wrong with its send or recv, or empty.
std::string message_error(const Request& request, int rank, int size);

/// Why a send and the recv that it meets cannot be one message, with what each rank asked for; or
/// empty. `sender` and `receiver`: what these ranks are called.
std::string message_mismatch(const std::string& sender, const RequestMeta& send,
                             const std::string& receiver, const RequestMeta& recv);

}  // namespace ronde
