"""Matrix products on sm_90a: TMA, a ring of mbarriers, wgmma, warpgroups with roles."""
