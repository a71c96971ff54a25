"""Ready policies, one a file; installed as `leyline_agent.policies`."""
