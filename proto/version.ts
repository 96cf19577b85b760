// The protocol's version, one integer. A change that a peer has to know about (not a mere added field) raises it and
// gets a dated line in agent.proto's header; test/proto compares the two.

/** What this build speaks. */
export const PROTOCOL_VERSION = 1;
/** The oldest agent that this control plane gives work to; older ones are `incompatible`: engines kept, nothing new. */
export const OLDEST_AGENT_PROTOCOL = 1;
