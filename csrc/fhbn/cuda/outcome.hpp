#pragma once

#include <string>

#include "cuda/failure.hpp"
#include "fhbn/cuda/end.hpp"

// What an end's failure means to a person: the sentences of the host's ends, where there are such.
namespace lamina::fhbn::cuda {

inline lamina_cuda_status status_of(Fault fault) {
  if (fault == Fault::kNone) return LAMINA_CUDA_OK;
  if (fault == Fault::kLate) return LAMINA_CUDA_CHANNEL_LATE;
  if (fault == Fault::kPeerLost) return LAMINA_CUDA_CHANNEL_LOST;
  if (fault == Fault::kClosed) return LAMINA_CUDA_CHANNEL_CLOSED;
  if (fault == Fault::kNicFailed) return LAMINA_CUDA_NIC_FAILED;
  if (fault <= kLastCorruption) return LAMINA_CUDA_CHANNEL_CORRUPTED;
  return fault <= kLastFault ? LAMINA_CUDA_CHANNEL_MISUSED : LAMINA_CUDA_FAILED;
}

inline std::string wait_sentence(Fault fault, bool sends, const std::string& peer) {
  if (fault == Fault::kLate) {
    return sends ? peer + " has not given back any of the channel's slots in time"
                 : "nothing came from " + peer + " in time";
  }
  const std::string how = fault == Fault::kClosed ? " has closed the channel" : " has ended";
  return peer + how + (sends ? " and takes no more messages" : " and all its messages were received");
}

inline std::string sentence_of(const Mailbox::Report& report, bool sends, const std::string& peer) {
  switch (report.fault) {
    case Fault::kNone:
      return {};
    case Fault::kLate:
    case Fault::kPeerLost:
    case Fault::kClosed:
      return wait_sentence(report.fault, sends, peer);
    case Fault::kNicFailed:
      return "the NIC carries no more messages to " + peer;
    case Fault::kFalseCredits:
      return peer + " claims to have consumed messages that were never sent";
    case Fault::kTooMuchSent:
      return peer + " claims to have sent more than the ring holds";
    case Fault::kTakenBack:
      return peer + " has taken back messages that it had published";
    case Fault::kOtherMessage:
      return peer + " has put another message where the next one belongs";
    case Fault::kOtherEpoch:
      return peer + " has sent a message of another epoch";
    case Fault::kTooManyParts:
      return peer + " has sent a message of impossibly many parts";
    case Fault::kLargerThanMessages:
      return peer + " has sent a message larger than the channel's messages";
    case Fault::kAllOutstanding:
      return "all slots of the channel from " + peer + " hold messages that were not given back";
    case Fault::kNoneOutstanding:
      return "no message from " + peer + " is held that could be fetched or given back";
    case Fault::kOthersOutstanding:
      return "an earlier message from " + peer + " has to be given back before recv()";
    case Fault::kOtherParts:
      return "the message from " + peer + " has " + std::to_string(report.has) +
             " parts and there are buffers for " + std::to_string(report.room);
    case Fault::kLargerThanBuffer:
      return "part " + std::to_string(report.part) + " of the message from " + peer + " has " +
             std::to_string(report.has) + " bytes and its buffer has room for " + std::to_string(report.room);
  }
  return "the channel's end has an unknown failure";
}

// With where it happened. What came before was sent or received, and nothing after.
inline std::string notified(const Mailbox::Report& report, bool sends, const std::string& peer) {
  return sentence_of(report, sends, peer) + " (at message " + std::to_string(report.seqno) +
         "; this end does nothing since)";
}

}  // namespace lamina::fhbn::cuda
