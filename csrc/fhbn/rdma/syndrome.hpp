#pragma once

#include <string>

#include "fhbn/rdma/queue.hpp"
#include "fhbn/rdma/writer.hpp"

// What a completion with an error means to a person.
namespace lamina::fhbn::rdma {

inline NicFault fault_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::kLocalProtection:
    case Syndrome::kLocalLength:
    case Syndrome::kLocalAccess:
      return NicFault::kLocalAccess;
    case Syndrome::kRemoteAccess:
      return NicFault::kRemoteAccess;
    case Syndrome::kRetryExceeded:
      return NicFault::kRetryExceeded;
    case Syndrome::kFlushed:
      return NicFault::kFlushed;
    case Syndrome::kLocalOperation:
    case Syndrome::kRemoteInvalid:
      return NicFault::kMalformed;
    default:
      return NicFault::kOther;
  }
}

// The same for every way of posting, so that failures have the same text. `code`: what
// the NIC or its driver calls it.
inline std::string sentence_of(NicFault fault, const std::string& peer, const std::string& code) {
  const std::string tail = " (" + code + "): open the channel again";
  switch (fault) {
    case NicFault::kLocalAccess:
      return "the NIC may not read the memory that was to be sent to " + peer + tail;
    case NicFault::kRemoteAccess:
      return "the NIC of " + peer + " refuses a write: the key is wrong or the memory no longer registered" +
             tail;
    case NicFault::kRetryExceeded:
      return "the NIC of " + peer + " has not answered, and sending again has not helped" + tail;
    case NicFault::kFlushed:
      return "the queue pair to " + peer + " has failed and sends nothing more" + tail;
    case NicFault::kMalformed:
      return "the NIC does not understand a request to " + peer + tail;
    case NicFault::kStuck:
      return "the NIC has not sent to " + peer + " in time what it was given" + tail;
    case NicFault::kOther:
      break;
  }
  return "the NIC has given up sending to " + peer + tail;
}

inline std::string sentence_of(const Completed& completed, const std::string& peer) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto hex = [&](std::uint8_t byte) {
    return std::string("0x") + kDigits[byte >> 4] + kDigits[byte & 15];
  };
  const auto syndrome = static_cast<std::uint8_t>(completed.syndrome);
  return sentence_of(fault_of(completed.syndrome), peer,
                     "syndrome " + hex(syndrome) + ", vendor's " + hex(completed.vendor_syndrome));
}

}  // namespace lamina::fhbn::rdma
