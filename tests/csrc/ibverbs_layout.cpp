// Compiled where libibverbs' headers are installed: our declarations lie in memory as theirs do.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdio>

#include "fhbn/rdma/ibverbs_abi.hpp"

namespace abi = lamina::fhbn::rdma::abi;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(abi::ours) == sizeof(theirs))
#define SAME_PLACE(ours, our_field, theirs, their_field)                           \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(decltype(abi::ours::our_field)) == sizeof(decltype(theirs::their_field)))
#define SAME_VALUE(ours, theirs) static_assert(static_cast<int>(abi::ours) == static_cast<int>(theirs))

SAME_SIZE(GidEntry, ibv_gid_entry);
SAME_PLACE(GidEntry, gid, ibv_gid_entry, gid);
SAME_PLACE(GidEntry, index, ibv_gid_entry, gid_index);
SAME_PLACE(GidEntry, port, ibv_gid_entry, port_num);
SAME_PLACE(GidEntry, type, ibv_gid_entry, gid_type);

// Newer headers have more behind `flags`, which the function that is called here does not fill in.
static_assert(sizeof(abi::PortAttributes) <= sizeof(ibv_port_attr));
SAME_PLACE(PortAttributes, state, ibv_port_attr, state);
SAME_PLACE(PortAttributes, active_mtu, ibv_port_attr, active_mtu);
SAME_PLACE(PortAttributes, gids, ibv_port_attr, gid_tbl_len);
SAME_PLACE(PortAttributes, max_message_bytes, ibv_port_attr, max_msg_sz);
SAME_PLACE(PortAttributes, lid, ibv_port_attr, lid);
SAME_PLACE(PortAttributes, link_layer, ibv_port_attr, link_layer);
SAME_PLACE(PortAttributes, flags, ibv_port_attr, flags);

SAME_SIZE(ProtectionDomain, ibv_pd);
SAME_SIZE(MemoryRegion, ibv_mr);
SAME_PLACE(MemoryRegion, lkey, ibv_mr, lkey);
SAME_PLACE(MemoryRegion, rkey, ibv_mr, rkey);

SAME_SIZE(Capacity, ibv_qp_cap);
SAME_PLACE(Capacity, send_requests, ibv_qp_cap, max_send_wr);
SAME_PLACE(Capacity, send_pieces, ibv_qp_cap, max_send_sge);
SAME_PLACE(Capacity, inline_bytes, ibv_qp_cap, max_inline_data);
SAME_SIZE(QueuePairInit, ibv_qp_init_attr);
SAME_PLACE(QueuePairInit, send_completions, ibv_qp_init_attr, send_cq);
SAME_PLACE(QueuePairInit, receive_completions, ibv_qp_init_attr, recv_cq);
SAME_PLACE(QueuePairInit, capacity, ibv_qp_init_attr, cap);
SAME_PLACE(QueuePairInit, type, ibv_qp_init_attr, qp_type);
SAME_PLACE(QueuePairInit, signal_all, ibv_qp_init_attr, sq_sig_all);

SAME_SIZE(GlobalRoute, ibv_global_route);
SAME_PLACE(GlobalRoute, destination, ibv_global_route, dgid);
SAME_PLACE(GlobalRoute, source_index, ibv_global_route, sgid_index);
SAME_PLACE(GlobalRoute, hop_limit, ibv_global_route, hop_limit);
SAME_SIZE(AddressVector, ibv_ah_attr);
SAME_PLACE(AddressVector, global, ibv_ah_attr, grh);
SAME_PLACE(AddressVector, destination_lid, ibv_ah_attr, dlid);
SAME_PLACE(AddressVector, is_global, ibv_ah_attr, is_global);
SAME_PLACE(AddressVector, port, ibv_ah_attr, port_num);

SAME_SIZE(QueuePairAttributes, ibv_qp_attr);
SAME_PLACE(QueuePairAttributes, state, ibv_qp_attr, qp_state);
SAME_PLACE(QueuePairAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME_PLACE(QueuePairAttributes, receive_psn, ibv_qp_attr, rq_psn);
SAME_PLACE(QueuePairAttributes, send_psn, ibv_qp_attr, sq_psn);
SAME_PLACE(QueuePairAttributes, destination, ibv_qp_attr, dest_qp_num);
SAME_PLACE(QueuePairAttributes, access, ibv_qp_attr, qp_access_flags);
SAME_PLACE(QueuePairAttributes, path, ibv_qp_attr, ah_attr);
SAME_PLACE(QueuePairAttributes, pkey_index, ibv_qp_attr, pkey_index);
SAME_PLACE(QueuePairAttributes, reads_issued, ibv_qp_attr, max_rd_atomic);
SAME_PLACE(QueuePairAttributes, reads_served, ibv_qp_attr, max_dest_rd_atomic);
SAME_PLACE(QueuePairAttributes, not_ready_timer, ibv_qp_attr, min_rnr_timer);
SAME_PLACE(QueuePairAttributes, port, ibv_qp_attr, port_num);
SAME_PLACE(QueuePairAttributes, timeout, ibv_qp_attr, timeout);
SAME_PLACE(QueuePairAttributes, retries, ibv_qp_attr, retry_cnt);
SAME_PLACE(QueuePairAttributes, not_ready_retries, ibv_qp_attr, rnr_retry);

SAME_SIZE(Piece, ibv_sge);
SAME_PLACE(Piece, address, ibv_sge, addr);
SAME_PLACE(Piece, length, ibv_sge, length);
SAME_PLACE(Piece, lkey, ibv_sge, lkey);
SAME_SIZE(SendRequest, ibv_send_wr);
SAME_PLACE(SendRequest, id, ibv_send_wr, wr_id);
SAME_PLACE(SendRequest, next, ibv_send_wr, next);
SAME_PLACE(SendRequest, pieces, ibv_send_wr, sg_list);
SAME_PLACE(SendRequest, piece_count, ibv_send_wr, num_sge);
SAME_PLACE(SendRequest, opcode, ibv_send_wr, opcode);
SAME_PLACE(SendRequest, flags, ibv_send_wr, send_flags);
SAME_PLACE(SendRequest, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(SendRequest, rkey, ibv_send_wr, wr.rdma.rkey);

SAME_SIZE(Completion, ibv_wc);
SAME_PLACE(Completion, id, ibv_wc, wr_id);
SAME_PLACE(Completion, status, ibv_wc, status);
SAME_PLACE(Completion, vendor_error, ibv_wc, vendor_err);
SAME_PLACE(Completion, queue_pair, ibv_wc, qp_num);

SAME_SIZE(ContextCalls, ibv_context_ops);
SAME_PLACE(ContextCalls, poll, ibv_context_ops, poll_cq);
SAME_PLACE(ContextCalls, post, ibv_context_ops, post_send);
SAME_SIZE(Context, ibv_context);
SAME_PLACE(Context, device, ibv_context, device);
SAME_PLACE(Context, calls, ibv_context, ops);
SAME_PLACE(CompletionQueue, entries, ibv_cq, cqe);
SAME_PLACE(QueuePair, number, ibv_qp, qp_num);

SAME_VALUE(kGidRoceV2, IBV_GID_TYPE_ROCE_V2);
SAME_VALUE(kPortActive, IBV_PORT_ACTIVE);
SAME_VALUE(kLinkLayerEthernet, IBV_LINK_LAYER_ETHERNET);
SAME_VALUE(kRouteRequired, IBV_QPF_GRH_REQUIRED);
SAME_VALUE(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
SAME_VALUE(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
SAME_VALUE(kReliableConnected, IBV_QPT_RC);
SAME_VALUE(kStateInit, IBV_QPS_INIT);
SAME_VALUE(kStateReadyToReceive, IBV_QPS_RTR);
SAME_VALUE(kStateReadyToSend, IBV_QPS_RTS);
SAME_VALUE(kSetState, IBV_QP_STATE);
SAME_VALUE(kSetAccess, IBV_QP_ACCESS_FLAGS);
SAME_VALUE(kSetPkeyIndex, IBV_QP_PKEY_INDEX);
SAME_VALUE(kSetPort, IBV_QP_PORT);
SAME_VALUE(kSetPath, IBV_QP_AV);
SAME_VALUE(kSetPathMtu, IBV_QP_PATH_MTU);
SAME_VALUE(kSetTimeout, IBV_QP_TIMEOUT);
SAME_VALUE(kSetRetries, IBV_QP_RETRY_CNT);
SAME_VALUE(kSetNotReadyRetries, IBV_QP_RNR_RETRY);
SAME_VALUE(kSetReceivePsn, IBV_QP_RQ_PSN);
SAME_VALUE(kSetReadsIssued, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_VALUE(kSetNotReadyTimer, IBV_QP_MIN_RNR_TIMER);
SAME_VALUE(kSetSendPsn, IBV_QP_SQ_PSN);
SAME_VALUE(kSetReadsServed, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_VALUE(kSetDestination, IBV_QP_DEST_QPN);
SAME_VALUE(kRdmaWrite, IBV_WR_RDMA_WRITE);
SAME_VALUE(kSuccess, IBV_WC_SUCCESS);
SAME_VALUE(kLocalLength, IBV_WC_LOC_LEN_ERR);
SAME_VALUE(kLocalOperation, IBV_WC_LOC_QP_OP_ERR);
SAME_VALUE(kLocalProtection, IBV_WC_LOC_PROT_ERR);
SAME_VALUE(kFlushed, IBV_WC_WR_FLUSH_ERR);
SAME_VALUE(kRemoteInvalid, IBV_WC_REM_INV_REQ_ERR);
SAME_VALUE(kRemoteAccess, IBV_WC_REM_ACCESS_ERR);
SAME_VALUE(kRetryExceeded, IBV_WC_RETRY_EXC_ERR);
SAME_VALUE(kSignalled, IBV_SEND_SIGNALED);
SAME_VALUE(kInline, IBV_SEND_INLINE);

int main() { std::puts("the same"); }
